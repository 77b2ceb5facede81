// Linear attention with its norms, rotary positions and convolution: one pass for sums, one for outputs.

#include <cmath>

#include "vectors.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

// One head of one image: where its tokens lie, and how many floats are between two of them.
struct Tokens {
    const float* at;
    long batch, token, head;
    const float* of(long b, long h) const { return at + b * batch + h * head; }
};

float inverse_norm(const float* x, long length, float eps) {
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (long d = 0; d < length; ++d) total += x[d] * x[d];
    const float norm = std::sqrt(total);
    return norm > eps ? 1 / norm : 0;
}

// sums[d, e] += rows[t, d] values[t, e] over a block of tokens.
template <int W>
void outer(const float* rows, long dim, const float* values, long value_token, long count, float* sums, long width) {
    for (long d = 0; d < dim; d += ROWS) {
        Vec acc[ROWS][W];
        for (int r = 0; r < ROWS; ++r)
            for (int w = 0; w < W; ++w) acc[r][w] = load(sums + (d + r) * width + w * LANES);
        for (long t = 0; t < count; ++t) {
            Vec value[W];
            for (int w = 0; w < W; ++w) value[w] = load(values + t * value_token + w * LANES);
            for (int r = 0; r < ROWS; ++r)
                for (int w = 0; w < W; ++w) acc[r][w] += rows[t * dim + d + r] * value[w];
        }
        for (int r = 0; r < ROWS; ++r)
            for (int w = 0; w < W; ++w) store(sums + (d + r) * width + w * LANES, acc[r][w]);
    }
}

// out[t, e] = rows[t, d] sums[d, e]; rows are there for a whole number of tiles.
template <int W>
void inner(const float* rows, long dim, const float* sums, long count, float* out, long width) {
    for (long t = 0; t < count; t += ROWS) {
        Vec acc[ROWS][W] = {};
        for (long d = 0; d < dim; ++d) {
            Vec sum[W];
            for (int w = 0; w < W; ++w) sum[w] = load(sums + d * width + w * LANES);
            for (int r = 0; r < ROWS; ++r)
                for (int w = 0; w < W; ++w) acc[r][w] += rows[(t + r) * dim + d] * sum[w];
        }
        for (int r = 0; r < ROWS; ++r)
            for (int w = 0; w < W; ++w) store(out + (t + r) * width + w * LANES, acc[r][w]);
    }
}

// Calls `wide(first channel)` for whole tiles of the width of a head, and `narrow` for the vectors that are left.
template <typename Wide, typename Narrow>
void over_width(long width, Wide wide, Narrow narrow) {
    long e = 0;
    for (; e + WIDE * LANES <= width; e += WIDE * LANES) wide(e);
    for (; e < width; e += LANES) narrow(e);
}

// out[t] += sum of taps[j] v[first + t + j - half], zeros beyond the ends; one block of channels.
void add_taps(const Vec* taps, long num_taps, const float* v, long v_token, long first, long count, long num_tokens,
              float* out, long out_token) {
    const long half = num_taps / 2;
    for (long t = 0; t < count; t += 4) {
        const long begin = first + t - half;
        if (begin >= 0 && begin + num_taps + 3 <= num_tokens && t + 4 <= count) {
            Vec acc[4];
            for (int o = 0; o < 4; ++o) acc[o] = load(out + (t + o) * out_token);
            for (long j = 0; j < num_taps; ++j)
                for (int o = 0; o < 4; ++o) acc[o] += taps[j] * load(v + (begin + j + o) * v_token);
            for (int o = 0; o < 4; ++o) store(out + (t + o) * out_token, acc[o]);
        } else {
            for (long o = 0; o < 4 && t + o < count; ++o) {
                Vec acc = load(out + (t + o) * out_token);
                for (long j = 0; j < num_taps; ++j)
                    if (begin + o + j >= 0 && begin + o + j < num_tokens)
                        acc += taps[j] * load(v + (begin + o + j) * v_token);
                store(out + (t + o) * out_token, acc);
            }
        }
    }
}

int num_threads() {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// scale * normalise(own + of_products q (k^T v)) + convolution + local, as castling/attention/native.py says.
struct Attention {
    Tokens q, k, v, own;
    const float *table, *taps, *local;
    long num_taps, num_queries, num_tokens, heads, dim, width;
    bool centred, normalised;
    float of_products, of_sum, scale, eps, eps_out;

    // A row of q or k as the products want it: scaled, turned by its place, and less the mean of all.
    void pack(const float* x, long t, float by, const float* mean, float* to) const {
        const long half = dim / 2;
        if (table) {
            const float *cosine = table + t * half, *sine = cosine + num_tokens * half;
#pragma omp simd
            for (long d = 0; d < half; ++d) {
                const float first = x[d] * by, second = x[half + d] * by;
                to[d] = first * cosine[d] - second * sine[d];
                to[half + d] = first * sine[d] + second * cosine[d];
            }
        } else {
#pragma omp simd
            for (long d = 0; d < dim; ++d) to[d] = x[d] * by;
        }
        for (long d = 0; mean && d < dim; ++d) to[d] -= mean[d];
    }

    float inverse_length(const float* row) const { return centred ? 1 : inverse_norm(row, dim, eps); }

    // The mean key of a head, and the sum of its values.
    void means_of(long b, long h, float* mean_key, float* sum_value, float* row) const {
        for (long t = 0; t < num_tokens; ++t) {
            const float* value = v.of(b, h) + t * v.token;
            pack(k.of(b, h) + t * k.token, t, 1.0f / num_tokens, nullptr, row);
            for (long d = 0; d < dim; ++d) mean_key[d] += row[d];
            for (long e = 0; e < width; ++e) sum_value[e] += value[e];
        }
    }

    // sums += k^T v over the tokens from `begin` to before `end`.
    void add_products(long b, long h, long begin, long end, const float* mean_key, float* sums, float* rows) const {
        for (long t = begin; t < end; t += BLOCK) {
            const long count = end - t < BLOCK ? end - t : BLOCK;
            for (long i = 0; i < count; ++i) {
                const float* row = k.of(b, h) + (t + i) * k.token;
                pack(row, t + i, inverse_length(row), mean_key, rows + i * dim);
            }
            const float* value = v.of(b, h) + t * v.token;
            over_width(
                width, [&](long e) { outer<WIDE>(rows, dim, value + e, v.token, count, sums + e, width); },
                [&](long e) { outer<1>(rows, dim, value + e, v.token, count, sums + e, width); });
        }
    }

    // The outputs of the queries from `begin` to before `end`.
    void write(long b, long h, long begin, long end, const float* sum_value, const float* sums, const Vec* filters,
               float* out, float* rows, float* block) const {
        for (long t = begin; t < end; t += BLOCK) {
            const long count = end - t < BLOCK ? end - t : BLOCK;
            for (long i = 0; i < count; ++i) {
                const float* row = q.of(b, h) + (t + i) * q.token;
                pack(row, t + i, of_products * inverse_length(row), nullptr, rows + i * dim);
            }
            over_width(
                width, [&](long e) { inner<WIDE>(rows, dim, sums + e, count, block + e, width); },
                [&](long e) { inner<1>(rows, dim, sums + e, count, block + e, width); });
            const long place = ((b * num_queries + t) * heads + h) * width;
            for (long i = 0; i < count; ++i) {
                const float *first = own.at ? own.of(b, h) + (t + i) * own.token : sum_value, share = own.at ? 1 : of_sum;
                float *row = block + i * width, *to = out + place + i * heads * width;
                for (long e = 0; e < width; ++e) row[e] += share * first[e];
                const float factor = normalised ? scale * inverse_norm(row, width, eps_out) : scale;
                for (long e = 0; e < width; ++e) to[e] = row[e] * factor;
                for (long e = 0; local && e < width; ++e) to[e] += local[to - out + e];
            }
            for (long e = 0; taps && e < width; e += LANES)
                add_taps(filters + e / LANES * num_taps, num_taps, v.of(b, h) + e, v.token, t, count, num_tokens,
                         out + place + e, heads * width);
        }
    }

    // Every head in so many bands of tokens that all threads have something to do.
    void run(long batch, float* out) const {
        const long all = batch * heads, bands = all >= 4 * num_threads() ? 1 : num_threads(), size = dim * width;
        Room every_sum(bands * all * size), every_mean(all * (dim + width));
        const bool wants_means = centred || !own.at;
#pragma omp parallel
        {
            Room rows(BLOCK * dim), block(BLOCK * width), sums(size);
            std::vector<Vec> filters(num_taps * width / LANES);
            if (wants_means) {
#pragma omp for schedule(static)
                for (long head = 0; head < all; ++head) {
                    float* mean_key = every_mean.at + head * (dim + width);
                    means_of(head / heads, head % heads, mean_key, mean_key + dim, rows.at);
                }
            }
#pragma omp for collapse(2) schedule(static)
            for (long head = 0; head < all; ++head)
                for (long band = 0; band < bands; ++band)
                    add_products(head / heads, head % heads, num_tokens * band / bands, num_tokens * (band + 1) / bands,
                                 centred ? every_mean.at + head * (dim + width) : nullptr,
                                 every_sum.at + (head * bands + band) * size, rows.at);
#pragma omp for collapse(2) schedule(static)
            for (long head = 0; head < all; ++head)
                for (long band = 0; band < bands; ++band) {
                    const float* parts = every_sum.at + head * bands * size;
                    std::memcpy(sums.at, parts, size * sizeof(float));
                    for (long other = 1; other < bands; ++other)
                        for (long d = 0; d < size; ++d) sums.at[d] += parts[other * size + d];
                    const long h = head % heads;
                    for (long i = 0; i < num_taps * width; ++i) {
                        const long e = i / num_taps;
                        filters[e / LANES * num_taps + i % num_taps][e % LANES] = taps[h * num_taps * width + i];
                    }
                    write(head / heads, h, num_queries * band / bands, num_queries * (band + 1) / bands,
                          every_mean.at + head * (dim + width) + dim, sums.at, filters.data(), out, rows.at, block.at);
                }
        }
    }
};

}  // namespace

extern "C" void castling_attention(float* out, const float* q_at, long q_batch, long q_token, long q_head,
                                   const float* k_at, long k_batch, long k_token, long k_head, const float* v_at,
                                   long v_batch, long v_token, long v_head, const float* own_at, long own_batch,
                                   long own_token, long own_head, const float* table, const float* taps,
                                   const float* local, long num_taps, long batch, long num_queries, long num_tokens,
                                   long heads, long dim, long width, int centred, float of_products, float of_sum,
                                   float scale, int normalised, float eps, float eps_out) {
    const Tokens q{q_at, q_batch, q_token, q_head}, k{k_at, k_batch, k_token, k_head};
    const Tokens v{v_at, v_batch, v_token, v_head}, own{own_at, own_batch, own_token, own_head};
    const Attention attention{q,     k,   v,     own,          table,           taps,        local,  num_taps, num_queries,
                              num_tokens, heads, dim, width, centred != 0, normalised != 0, of_products, of_sum, scale,
                              eps,   eps_out};
    attention.run(batch, out);
}

extern "C" int castling_lanes() { return LANES; }
