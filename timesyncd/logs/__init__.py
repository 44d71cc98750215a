"""The logs of ptp4l, phc2sys and chronyd, read line by line for `timesyncd replay`. Pure."""
