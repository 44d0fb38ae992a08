"""The pages: each module shows one, with ``build``."""
