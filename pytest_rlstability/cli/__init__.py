"""The ``rlstability`` commands, one file each."""
