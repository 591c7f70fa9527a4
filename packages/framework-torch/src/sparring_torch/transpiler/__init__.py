"""`distribute`: converts a program for one machine to a program for many ranks, and back.

model, optimizer ──► scan ──► report: replaced, kept, unsupported ──► nothing unsupported?
                                                                      │
          modules with tables in place of embeddings ◄────────────────┘
          weights copied to tables, one optimizer for rows and parameters
"""
