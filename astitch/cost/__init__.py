"""How long a kernel will take, and how long it must."""
