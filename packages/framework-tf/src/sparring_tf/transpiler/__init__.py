"""`distribute`: converts a Keras model for one machine to a model for many ranks, and back.

model, optimizer ──► scan ──► report: replaced, kept, unsupported ──► nothing unsupported?
                                                                          │
          layers with tables instead of keras.layers.Embedding ◄──────────┘
          graphs rebuilt with the other layers; weights copied to tables
"""
