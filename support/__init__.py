"""What the six scripts need and a reader may skip: files, devices, downloads, GLUE's formats."""
