// SPDX-License-Identifier: Apache-2.0
/* Tensor cores, matrix loads and asynchronous copies, behind one wall: PTX for the GPU, emulation
 * for the simulated device (which follows the PTX manual's fragment layouts element by element).
 *
 *     d[16, 8] += a[16, 16] b[16, 8],   g = lane / 4, t = lane % 4
 *     a[0] (g, 2t..)   a[1] (g + 8, 2t..)   a[2] (g, 2t + 8..)   a[3] (g + 8, 2t + 8..)
 *     b0 (2t.., g)     b1 (2t + 8.., g)
 *     d[0] (g, 2t)  d[1] (g, 2t + 1)  d[2] (g + 8, 2t)  d[3] (g + 8, 2t + 1)
 */
#ifndef SLUICE_KERNELS_CUDA_MMA_CUH
#define SLUICE_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/number.cuh"

namespace
{

template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1);

#ifndef SLUICE_CUDASIM

template <>
__device__ __forceinline__ void mma_16x8x16<bf16>(float (&d)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma_16x8x16<f16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
 * r[i] holds (g, 2t..) of matrix i. */
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void *row)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* The same, transposed: r[i] holds (2t.., g). */
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void *row)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* 16 bytes from global to shared memory, zeros where not `valid`; complete after the wait. */
__device__ __forceinline__ void copy_async(void *to, const void *from, bool valid)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(address), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait until at most GROUPS of the committed groups are under way. */
template <int GROUPS> __device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(GROUPS) : "memory");
}

#else

template <class T>
inline void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const unsigned char *all = cudasim::warp_exchange("mma", mine, sizeof mine);
    unsigned g = cudasim::lane() / 4, t = cudasim::lane() % 4;
    auto word = [all](unsigned lane, unsigned i) {
        uint32_t value;
        std::memcpy(&value, all + lane * 64 + i * 4, 4);
        return value;
    };
    auto half = [](uint32_t pair, unsigned odd) {
        return to_f32(T{(uint16_t)(odd ? pair >> 16 : pair)});
    };
    for (unsigned e = 0; e < 4; e++) {
        unsigned lower = e / 2, column = 2 * t + e % 2; /* row g + 8 * lower */
        for (unsigned k = 0; k < 16; k++) {
            unsigned owner = k % 8 / 2, upper = k / 8;
            d[e] += half(word(g * 4 + owner, lower + 2 * upper), k % 2) *
                    half(word(column * 4 + owner, 4 + upper), k % 2);
        }
    }
}

inline void load_matrices_emulated(uint32_t (&r)[4], const void *row, bool transposed)
{
    const unsigned char *all =
        cudasim::warp_exchange(transposed ? "ldmatrix.trans" : "ldmatrix", &row, sizeof row);
    unsigned g = cudasim::lane() / 4, t = cudasim::lane() % 4;
    auto element = [all](unsigned matrix, unsigned i, unsigned j) {
        const uint4 *address; /* uint4: UBSan checks the 16-byte alignment that ldmatrix needs */
        std::memcpy(&address, all + (matrix * 8 + i) * 64, sizeof address);
        uint4 line = *address;
        uint16_t values[8];
        std::memcpy(values, &line, sizeof values);
        return (uint32_t)values[j];
    };
    for (unsigned i = 0; i < 4; i++)
        r[i] = transposed ? element(i, 2 * t, g) | element(i, 2 * t + 1, g) << 16
                          : element(i, g, 2 * t) | element(i, g, 2 * t + 1) << 16;
}

inline void load_matrices(uint32_t (&r)[4], const void *row)
{
    load_matrices_emulated(r, row, false);
}

inline void load_matrices_transposed(uint32_t (&r)[4], const void *row)
{
    load_matrices_emulated(r, row, true);
}

inline void copy_async(void *to, const void *from, bool valid)
{
    cudasim::copy_async_issue(to, from, 16, valid ? 16 : 0);
}

inline void copy_async_commit()
{
    cudasim::copy_async_commit();
}

template <int GROUPS> inline void copy_async_wait()
{
    cudasim::copy_async_wait(GROUPS);
}

#endif

} // namespace

#endif
