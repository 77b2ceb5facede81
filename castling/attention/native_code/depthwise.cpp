// Depthwise convolution and GELU in one pass.

#include "vectors.h"

namespace {

// 0.5 x (1 + erf(x / sqrt 2)); erf as z P(z^2) / Q(z^2), fitted to 4e-8, and +-1 from 3.92 on.
constexpr float P[] = {1.12837875f, 0.206114694f, 0.051397346f, 0.00397291221f, 0.000148987194f, -1.99429951e-06f,
                       1.99213872e-08f};
constexpr float Q[] = {1, 0.515993178f, 0.117564753f, 0.0148892598f, 0.00102412864f};

inline Vec gelu(Vec x) {
    const Vec z = x * 0.70710678f;
    const Vec u = z * z;
    Vec p = all(P[6]), q = all(Q[4]);
    for (int i = 5; i >= 0; --i) p = p * u + P[i];
    for (int i = 3; i >= 0; --i) q = q * u + Q[i];
    const Vec sign = z > 0.0f ? all(1.0f) : all(-1.0f);
    const Vec erf = u < 15.3664f ? z * p / q : sign;
    return 0.5f * x * (1.0f + erf);
}

// Depthwise convolution of a K x K filter over one block of channels. Rows of the image go through a ring of K
// padded rows, so that each is read once, wherever tokens lie. Written are the rows from `first` to before `last`.
template <int K, bool GELU>
void depthwise_block(const float* x, long x_token, const float* weight, float* out, long out_token, long rows,
                     long columns, long first, long last, long count, float* ring) {
    const long wide = (columns + 3) / 4 * 4 + K - 1;
    Vec w[K * K];
    for (int tap = 0; tap < K * K; ++tap) {
        w[tap] = Vec{};
        for (long lane = 0; lane < count; ++lane) w[tap][lane] = weight[lane * K * K + tap];
    }
    std::memset(ring, 0, K * wide * sizeof(Vec));
    auto slot = [&](long row) { return ring + (row + K) % K * wide * LANES; };
    auto fill = [&](long row) {
        float* to = slot(row) + K / 2 * LANES;
        if (row >= rows) {
            std::memset(to, 0, columns * sizeof(Vec));
        } else if (count == LANES) {
            for (long c = 0; c < columns; ++c) store(to + c * LANES, load(x + (row * columns + c) * x_token));
        } else {
            for (long c = 0; c < columns; ++c)
                store(to + c * LANES, load_part(x + (row * columns + c) * x_token, count));
        }
    };
    for (long row = first > K / 2 ? first - K / 2 : 0; row < first + K / 2; ++row) fill(row);
    for (long row = first; row < last; ++row) {
        fill(row + K / 2);
        const float* from[K];
        for (int kr = 0; kr < K; ++kr) from[kr] = slot(row + kr - K / 2);
        for (long c = 0; c < columns; c += 4) {
            Vec acc[4] = {};
#pragma GCC unroll 16
            for (int kr = 0; kr < K; ++kr) {
#pragma GCC unroll 16
                for (int j = 0; j < K + 3; ++j) {
                    const Vec value = load(from[kr] + (c + j) * LANES);
#pragma GCC unroll 4
                    for (int o = 0; o < 4; ++o)
                        if (j >= o && j - o < K) acc[o] += value * w[kr * K + j - o];
                }
            }
            for (long o = 0; o < 4 && c + o < columns; ++o) {
                const Vec result = GELU ? gelu(acc[o]) : acc[o];
                float* to = out + ((row - first) * columns + c + o) * out_token;
                if (count == LANES) store(to, result);
                else std::memcpy(to, &result, count * sizeof(float));
            }
        }
    }
}

template <int K>
void depthwise(const float* x, long x_batch, long x_token, const float* weight, float* out, long batch, long prefix,
               long rows, long columns, long first_row, long last_row, long channels, bool with_gelu) {
    const long tokens = prefix + (last_row - first_row) * columns, blocks = (channels + LANES - 1) / LANES;
#pragma omp parallel
    {
        Room ring(K * ((columns + 3) / 4 * 4 + K - 1) * LANES);
#pragma omp for collapse(2) schedule(static)
        for (long b = 0; b < batch; ++b)
            for (long block = 0; block < blocks; ++block) {
                const long first = block * LANES, count = channels - first < LANES ? channels - first : LANES;
                const float* from = x + b * x_batch + first;
                float* to = out + b * tokens * channels + first;
                for (long t = 0; t < prefix; ++t) {
                    Vec value = load_part(from + t * x_token, count);
                    if (with_gelu) value = gelu(value);
                    std::memcpy(to + t * channels, &value, count * sizeof(float));
                }
                auto run = with_gelu ? depthwise_block<K, true> : depthwise_block<K, false>;
                run(from + prefix * x_token, x_token, weight + first * K * K, to + prefix * channels, channels, rows,
                    columns, first_row, last_row, count, ring.at);
            }
    }
}

}  // namespace

extern "C" void castling_depthwise(const float* x, long x_batch, long x_token, const float* weight, float* out,
                                   long batch, long prefix, long rows, long columns, long first_row, long last_row,
                                   long channels, long size, int with_gelu) {
    auto run = size == 5 ? depthwise<5> : depthwise<3>;
    run(x, x_batch, x_token, weight, out, batch, prefix, rows, columns, first_row, last_row, channels, with_gelu);
}
