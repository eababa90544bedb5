"""The bytes of HLO: their schema, what astitch does not know in them, and writing a graph back."""
