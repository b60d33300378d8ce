"""What the programs share: files, locks, devices, downloads, formats. Readers may skip it."""
