"""What the service remembers: one module per table or store, and no SQL anywhere else."""
