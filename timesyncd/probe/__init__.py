"""Looking into a grandmaster, or into a vendor's MIB, to learn what it serves: probes, recordings, skeletons of profiles."""
