# Paired statistics, tables, figures, report.
