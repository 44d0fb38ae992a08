"""Keys of encrypted stores: master keys, and the wrapped data keys of a shard and its streams."""
