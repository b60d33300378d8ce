"""What the programs share: files, locks, devices, downloads, formats."""
