"""The mathematics of speculative decoding: distributions, noise, draft trees and verification. No models, no engine."""
