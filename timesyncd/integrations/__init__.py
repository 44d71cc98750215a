"""What connects timesyncd to tools that other people have already. Each of them is off until it is asked for."""
