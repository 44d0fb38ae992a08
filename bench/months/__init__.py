"""The size and the cost of a store after days and months of load: the real engine, in virtual time."""
