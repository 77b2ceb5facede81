// Passes over tokens (B, N, C) as they lie, for inference on CPUs: what torch does in several passes is done in one.
//
// Plain C++ with vector extensions (GCC, Clang) and OpenMP: no header of torch's, so it is compiled in a second, and
// threads are those of the OpenMP runtime that torch has loaded. castling/attention/native.py calls it and has checked
// it against torch's own operators.

#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, WIDE = 4;  // floats of a vector; vectors of a tile in registers
#elif defined(__AVX__)
constexpr int LANES = 8, WIDE = 2;
#else
constexpr int LANES = 4, WIDE = 2;
#endif
constexpr int ROWS = 4;     // of a tile in registers
constexpr long BLOCK = 32;  // tokens that are packed at a time

typedef float Vec __attribute__((vector_size(LANES * 4)));
typedef float Loose __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

inline Vec load(const float* at) { return *reinterpret_cast<const Loose*>(at); }
inline void store(float* at, Vec x) { *reinterpret_cast<Loose*>(at) = x; }
inline Vec load_part(const float* at, long count) {
    Vec x = {};
    std::memcpy(&x, at, count * sizeof(float));
    return x;
}
inline Vec all(float x) { return x - Vec{}; }

struct Room {  // floats that begin at a cache line
    std::vector<float> floats;
    float* at;
    explicit Room(std::size_t count) : floats(count + 16) {
        at = floats.data() + (64 - reinterpret_cast<std::size_t>(floats.data()) % 64) % 64 / 4;
    }
};

}  // namespace
