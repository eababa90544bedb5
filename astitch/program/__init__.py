"""What the compiler hands on: the steps of a program, their memory, and the file that it is kept in."""
