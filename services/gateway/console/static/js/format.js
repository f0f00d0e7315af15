// Formats numbers and times with their units.

const DASH = "–";

export const number = (value, digits = 0) =>
  value === null || value === undefined ? DASH : value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });

export function duration(ms) {
  if (ms === null || ms === undefined) return DASH;
  if (ms < 999.5) return `${number(ms)} ms`;
  if (ms >= 600_000) return age(ms / 1000);
  return `${number(ms / 1000, ms < 9_950 ? 2 : 1)} s`;
}

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  const power = count > 0 ? Math.min(SIZES.length - 1, Math.floor(Math.log2(count) / 10)) : 0;
  const amount = count / 1024 ** power;
  return `${number(amount, power > 0 && amount < 100 ? 1 : 0)} ${SIZES[power]}`;
}

const UNITS = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];

/** A time in its two largest units, such as 3 h 20 min or 1 d. */
export function age(seconds) {
  const at = Math.max(0, UNITS.findIndex(([, length]) => seconds >= length));
  const [[unit, length], [smaller, part] = []] = UNITS.slice(seconds < 1 ? -1 : at);
  const rest = part ? Math.floor((seconds % length) / part) : 0;
  return `${Math.floor(seconds / length)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
}

export const threshold = (value) => number(value, 2);

export const percent = (share) => (share === null || share === undefined ? DASH : `${number(share * 100, share < 1 ? 1 : 0)} %`);

export const clock = (unixS) => new Date(unixS * 1000).toLocaleTimeString("en-GB");

export const moment = (unixS) =>
  new Date(unixS * 1000).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** The time of today, or the date and the time. */
export const arrival = (unixS) => (new Date(unixS * 1000).toDateString() === new Date().toDateString() ? clock(unixS) : moment(unixS));

export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
