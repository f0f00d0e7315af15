"""The report of all stages, as Markdown."""

from collections.abc import Sequence

from experiments.gpu_check.findings import Findings
from experiments.report import environment_header, markdown_table


def report(findings: Sequence[Findings], title: str) -> str:
    """A summary, then the notes, table and checks of each stage."""
    summary = [(f.stage, f.status, f"{f.seconds:.0f}", f.reason or failed_checks(f)) for f in findings]
    parts = [f"# {title}", environment_header(), markdown_table(("stage", "result", "seconds", "reason"), summary)]
    for found in findings:
        if found.rows or found.notes:
            parts.append(f"## {found.stage[0].upper()}{found.stage[1:]}")
            parts += found.notes
        if found.rows:
            parts.append(markdown_table((column.strip() for column in found.columns), found.rows))
        if found.checks:
            parts.append("\n".join(f"- {name}: {'yes' if good else 'NO'}" for name, good in found.checks.items()))
    return "\n\n".join(parts) + "\n"


def failed_checks(found: Findings) -> str:
    """The checks that failed, in one line."""
    return "; ".join(f"not: {name}" for name, good in found.checks.items() if not good)
