"""Tables of Delta Lake, Apache Iceberg and Lance as data: one version, read like row groups of files.

open_lake ──► DeltaLake, IcebergLake ──► files, partition values, deleted rows ──► ParquetRows
         └──► LanceLake ───────────────► fragments ──────────────────────────────► LanceRows
"""
