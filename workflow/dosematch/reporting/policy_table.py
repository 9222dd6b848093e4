"""Table 3D: totals and contrasts under four policies for panel questions that were trained on."""

from dosematch.reporting.table import Summary, Table, percent, signed
from dosematch.statistics.mcnemar import format_p
from dosematch.statistics.policies import POLICIES


def table3d(summary: Summary) -> Table:
    """One line per policy and arm, then per policy and contrast; suites are the columns."""
    suites = summary["suite_order"]
    rows, records = [], []
    policies = [policy for policy in POLICIES if policy in summary["policies"]]
    for policy in policies:
        totals = summary["policies"][policy]
        for arm in summary["arm_order"]:
            counts = totals["arms"][arm]
            cells = [
                f"{counts[s]['correct']:,}/{counts[s]['n']:,} ({percent(counts[s]['correct'], counts[s]['n'])} %)"
                for s in suites
            ]
            rows.append([policy, arm, *cells])
            records += [{"policy": policy, "arm": arm, "suite": suite, **counts[suite]} for suite in suites]
        contrasts: dict[tuple[str, str, str], list[str]] = {}
        for row in totals["contrasts"]:  # suites innermost and in the order of the columns
            cells = contrasts.setdefault((row["a"], row["b"], row["label"]), [policy, row["label"]])
            cells.append(f"{signed(row['net'])} / {row['n']:,}, p {format_p(row['p_exact'])}")
            named = {"arm_a": row["a"], "arm_b": row["b"], "contrast": row["label"], "suite": row["suite"]}
            numbers = {key: row[key] for key in ("n", "net", "wins", "losses")}
            records.append({"policy": policy, **named, **numbers, "p": row["p_exact"]})
        rows += contrasts.values()
    note = " ".join(f"{policy}: {POLICIES[policy]}." for policy in policies)
    title = "Table 3D. Counts and contrasts under each policy for questions seen in training"
    return Table("table3d", title, ["Policy", "Arm or contrast", *suites], rows, records, note)
