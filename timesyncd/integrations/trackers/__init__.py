"""
Logs a job's signals to experiment trackers, beside what the job logs there itself.

Imports the standard library and the client alone. `lightning` and `transformers` import their trainer.
"""

from timesyncd.integrations.trackers.adapters import Mlflow, TensorBoard, WeightsAndBiases
from timesyncd.integrations.trackers.signal_log import SignalLog, Tracker, signal_values

__all__ = ["Mlflow", "SignalLog", "TensorBoard", "Tracker", "WeightsAndBiases", "signal_values"]
