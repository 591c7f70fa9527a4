"""`sparring look`: a local page about the tables of a snapshot, a run or a serving snapshot."""
