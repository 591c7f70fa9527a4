"""Application of a step: sends gradients to their owners, checks them, and updates rows.

All checks are made before the first row changes. Ranks exchange their errors before gradients are
sent, and again before rows are written, so that all of them raise. Failures during the write, such
as a failing disk or exhausted memory, may leave a step that only some tables applied:
`PartialStepError` names them. There are two variants.

- A function over rows: `apply_update`. Rows and gradients are arrays, as the optimizers of frameworks
  require. The new rows of all tables are computed before the first one is written.
- Update methods: `apply_methods`. Built-in methods run fused if all rows are on this rank.
"""
