"""What a store holds and costs after days and months of load: the real engine, in virtual time."""
