"""`distribute`: the program of one machine as a program of many ranks, and back.

model, optimizer ──► scan ──► report: replaced, kept, refused ──► nothing refused?
                                                                      │
          modules with tables in place of embeddings ◄────────────────┘
          weights copied into tables, one optimizer for rows and parameters
"""
