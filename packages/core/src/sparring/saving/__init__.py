"""Snapshots of a training that runs: one step of all tables, while later steps go on.

saves             all saves of a container, one at a time
agreeing          how ranks learn that one of them cannot
saver             one save between its freeze and its end
freezing          what the rows of one table were at one moment, though steps change them
kept_rows         the old rows that a save still needs, and their memory
pace              how much of a core a save takes
table_watch       which keys change: for a save, and since the base of a delta
loading           how a rank takes over what it owns of a snapshot
run_snapshots     when a run saves, and what it resumes from
"""
