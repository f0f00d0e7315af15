// Formats numbers and times with their units.

const DASH = "–";

export const number = (value, digits = 0) =>
  value === null || value === undefined ? DASH : value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });

export function duration(ms) {
  if (ms === null || ms === undefined) return DASH;
  if (ms < 999.5) return `${number(ms)} ms`;
  return `${number(ms / 1000, ms < 9_950 ? 2 : 1)} s`;
}

export const threshold = (value) => number(value, 2);

export const percent = (share) => (share === null || share === undefined ? DASH : `${number(share * 100, share < 1 ? 1 : 0)} %`);

export const clock = (unixS) => new Date(unixS * 1000).toLocaleTimeString("en-GB");

export const moment = (unixS) =>
  new Date(unixS * 1000).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
