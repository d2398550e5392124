"""The zoo: tiny models of many architectures, each trained under plans and compared bit for bit with PyTorch's own."""
