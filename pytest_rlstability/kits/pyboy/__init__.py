"""PyBoy under test: a homebrew ROM, an emulator in its own process, and a guard for one in this process."""
