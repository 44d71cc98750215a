"""How stable a clock is: ADEV, TDEV, MTIE, constant and dynamic time error, and the masks of ITU-T. Pure; standard library only."""
