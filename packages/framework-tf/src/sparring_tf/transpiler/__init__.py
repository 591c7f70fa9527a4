"""`distribute`: a Keras model of one machine as one of many ranks, and back.

model, optimizer ──► scan ──► report: replaced, kept, refused ──► nothing refused?
                                                                      │
          layers with tables in place of keras.layers.Embedding ◄─────┘
          graphs made again over the same layers; weights copied into tables
"""
