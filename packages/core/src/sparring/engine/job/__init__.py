"""The job of a rank: how it joins, its plan, its settings and its memory."""
