"""What was not sent yet, parameter by parameter, however parameters are put into buckets."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from timesyncd.training.compression.interface import Bucket, State

_Places = tuple[int, ...]


class Residuals:
    """The parameters that a compressor serves, known by their places among those given, and the residual of each."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._parameters = list(parameters)  # alive, so that no other tensor gets the id of one of them
        self._places = {id(parameter): place for place, parameter in enumerate(self._parameters)}
        #: Of each place, a part of one of `_flats`, or as it was loaded.
        self._of: dict[int, torch.Tensor] = {}
        #: Of each bucket that was seen since its parameters were last put otherwise.
        self._flats: dict[_Places, torch.Tensor] = {}

    def places(self, bucket: Bucket) -> _Places:
        """Raises ValueError for a bucket of parameters that were not given, or of parts of them."""
        try:
            places = tuple(self._places[id(parameter)] for parameter in bucket.parameters())
        except KeyError:
            raise ValueError(
                "the bucket has a parameter that its compressor was not given: give it all of them"
            ) from None
        if sum(self._parameters[place].numel() for place in places) != bucket.buffer().numel():
            raise ValueError("the bucket's buffer is not as large as its parameters: put whole parameters into buckets")
        return places

    def flat(self, bucket: Bucket) -> torch.Tensor:
        """What the bucket's parameters have not sent, in its buffer's order; it is changed in place. float32 or wider."""
        places = self.places(bucket)
        if places not in self._flats:
            self._put(places, bucket.buffer())
        return self._flats[places]

    def _put(self, places: _Places, like: torch.Tensor) -> None:
        """In one tensor from now on. Buckets that any of them was in before are no more."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        parts = [
            self._of[place].to(like.device, dtype)
            if place in self._of
            else torch.zeros(self._parameters[place].numel(), dtype=dtype, device=like.device)
            for place in places
        ]
        self._flats = {put: flat for put, flat in self._flats.items() if not set(put) & set(places)}
        self._flats[places] = flat = torch.cat(parts)
        self._of.update(zip(places, torch.split(flat, [len(part) for part in parts]), strict=True))

    def state_dict(self) -> State:
        return {str(place): residual.clone() for place, residual in sorted(self._of.items())}

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError if they are not of these parameters."""
        loaded = {int(place): residual for place, residual in state.items()}
        for place, residual in loaded.items():
            if place >= len(self._parameters) or residual.numel() != self._parameters[place].numel():
                raise ValueError(
                    f"what was not sent of parameter {place} was saved for another network: start without it"
                )
        self._of, self._flats = loaded, {}
