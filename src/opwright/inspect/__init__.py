"""Where a kernel's memory accesses go, what bounds it on a device, and what to change next."""
