"""Looking into a unit, or into a vendor's MIB, to learn what it serves: probes, recordings, skeletons of profiles."""
