"""Applies what a step accumulated: gradients to their owners, checked, into rows.

Everything that can be refused is refused before the first row changes, by all ranks together: what
one of them finds out goes round before gradients travel, and again before rows are written. What
cannot be foreseen, a disk that fails or memory that ends while a storage writes, may leave a step that
some tables took and others did not: `PartialStepError` names them. There are two ways.

- By a function over rows: `apply_update`. Rows and gradients are arrays, as frameworks' own
  optimizers want them. All tables' new rows are computed before the first is written.
- By update methods: `apply_methods`. Built-in ones run fused where all rows are on this rank.
"""
