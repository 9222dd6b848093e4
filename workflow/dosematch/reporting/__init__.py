"""Tables, figures, checks and the HTML report, all made from summary.json and the records beside it."""
