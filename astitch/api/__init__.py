"""What astitch.jit is made of: engines, the arguments of a call, lowered and compiled signatures, calls inside XLA."""
