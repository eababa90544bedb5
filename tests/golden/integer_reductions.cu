#include "astitch.cuh"
// stitch_0: grid 12 x 512 threads, 8640 B shared
//   jit(integer_reductions)/reduce_sum
//   jit(integer_reductions)/reduce_prod
//   jit(integer_reductions)/reduce_max
//   jit(integer_reductions)/reduce_min
//   jit(integer_reductions)/reduce_and
//   jit(integer_reductions)/reduce_or
//   jit(integer_reductions)/reduce_xor
//   jit(integer_reductions)/convert_element_type
struct Reduce0 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { int f0; };
  static __device__ __forceinline__ State identity() { return State{1}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const int v2 = hlo_multiply(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce1 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { int f0; };
  static __device__ __forceinline__ State identity() { return State{(-2147483647 - 1)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const int v2 = hlo_maximum(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce2 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { int f0; };
  static __device__ __forceinline__ State identity() { return State{(-0 - 1)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const int v2 = hlo_and(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce3 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { int f0; };
  static __device__ __forceinline__ State identity() { return State{0}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const int v2 = hlo_xor(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce4 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { int f0; };
  static __device__ __forceinline__ State identity() { return State{0}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const int v2 = hlo_add(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce5 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { int f0; };
  static __device__ __forceinline__ State identity() { return State{2147483647}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const int v2 = hlo_minimum(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce6 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { int f0; };
  static __device__ __forceinline__ State identity() { return State{0}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const int v2 = hlo_or(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce7 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { unsigned char f0; };
  static __device__ __forceinline__ State identity() { return State{(unsigned char)(0)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const unsigned char v2 = hlo_add(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce8 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { unsigned char f0; };
  static __device__ __forceinline__ State identity() { return State{(unsigned char)(0)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const unsigned char v2 = hlo_maximum(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce9 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { bool f0; };
  static __device__ __forceinline__ State identity() { return State{false}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const bool v2 = hlo_or(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce10 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { bool f0; };
  static __device__ __forceinline__ State identity() { return State{true}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const bool v2 = hlo_and(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const int* __restrict__ p_x_1,
    const unsigned char* __restrict__ p_small_1,
    const bool* __restrict__ p_flags_1,
    int* __restrict__ p_reduce_sum_21,
    int* __restrict__ p_reduce_min_7,
    int* __restrict__ p_reduce_or_14,
    unsigned char* __restrict__ p_reduce_max_15,
    bool* __restrict__ p_reduce_and_15,
    int* __restrict__ p_reduce_sum_23,
    int* __restrict__ p_reduce_prod_7,
    int* __restrict__ p_reduce_max_14,
    int* __restrict__ p_reduce_and_14,
    int* __restrict__ p_reduce_xor_7,
    unsigned char* __restrict__ p_reduce_sum_22,
    bool* __restrict__ p_reduce_or_15,
    unsigned char* scratch,
    unsigned int* barrier) {
  int* const p_reduce_prod_7_partial0_0 = reinterpret_cast<int*>(scratch + 0);
  int* const p_reduce_max_14_partial0_0 = reinterpret_cast<int*>(scratch + 1120);
  int* const p_reduce_and_14_partial0_0 = reinterpret_cast<int*>(scratch + 1152);
  int* const p_reduce_xor_7_partial0_0 = reinterpret_cast<int*>(scratch + 2272);
  unsigned char* const p_reduce_sum_22_partial0_0 = reinterpret_cast<unsigned char*>(scratch + 2304);
  bool* const p_reduce_or_15_partial0_0 = reinterpret_cast<bool*>(scratch + 2688);
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(8640);
  ASTITCH_SHARED(Reduce4::State, exchange_4_0, 8448, 16);
  ASTITCH_SHARED(Reduce5::State, exchange_5_0, 8512, 16);
  ASTITCH_SHARED(Reduce6::State, exchange_6_0, 8576, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 0, 1040);
  ASTITCH_SHARED(Reduce2::State, exchange_2_0, 4160, 1040);
  ASTITCH_SHARED(Reduce1::State, exchange_1_1, 8320, 16);
  ASTITCH_SHARED(Reduce3::State, exchange_3_1, 8384, 16);
  ASTITCH_SHARED(Reduce8::State, exchange_8_0, 1040, 16);
  ASTITCH_SHARED(Reduce7::State, exchange_7_1, 0, 1040);
  ASTITCH_SHARED(Reduce10::State, exchange_10_0, 1104, 16);
  ASTITCH_SHARED(Reduce4::State, exchange_4_0__1, 1040, 16);
  ASTITCH_SHARED(Reduce9::State, exchange_9_1, 0, 1040);
  {  // loop 0: outer 30 / 8 threads, row 1 / 1 threads x 1, col 70 / 64 threads x 1 x 2; 4 tasks; row-reduce: 8 rows a block, 64 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = 0;
    const int to = threadIdx.x / 64;
    const int first = blockIdx.x;
    Reduce0::State reduce_prod_7_state_0[2];
    #pragma unroll
    for (int i = 0; i < 2; ++i) reduce_prod_7_state_0[i] = Reduce0::identity();
    Reduce1::State reduce_max_14_state_0[1];
    #pragma unroll
    for (int i = 0; i < 1; ++i) reduce_max_14_state_0[i] = Reduce1::identity();
    Reduce2::State reduce_and_14_state_0[2];
    #pragma unroll
    for (int i = 0; i < 2; ++i) reduce_and_14_state_0[i] = Reduce2::identity();
    Reduce3::State reduce_xor_7_state_0[1];
    #pragma unroll
    for (int i = 0; i < 1; ++i) reduce_xor_7_state_0[i] = Reduce3::identity();
    if (first < 4) {
      const int task = first;
      const int outer_raw = task * 8 + to;
      const int outer = clamped(outer_raw, 29);
      Reduce4::State reduce_sum_21_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_21_state_0[i] = Reduce4::identity();
      Reduce5::State reduce_min_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_min_7_state_0[i] = Reduce5::identity();
      Reduce6::State reduce_or_14_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_or_14_state_0[i] = Reduce6::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 128 + tx * 2;
          if (col < 70) {
            const int at_0 = outer * 70 + col;
            const Vec<int, 2> x_1_v_0 = *reinterpret_cast<const Vec<int, 2>*>(p_x_1 + (at_0));
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int x_1 = load_as<int>(x_1_v_0.v[lane]);
              reduce_sum_21_state_0[0] = Reduce4::combine(reduce_sum_21_state_0[0], Reduce4::State{x_1});
              if (outer_raw < 30) {
                reduce_prod_7_state_0[l * 2 + lane] = Reduce0::combine(reduce_prod_7_state_0[l * 2 + lane], Reduce0::State{x_1});
              }
              if (outer_raw < 30) {
                reduce_max_14_state_0[0] = Reduce1::combine(reduce_max_14_state_0[0], Reduce1::State{x_1});
              }
              reduce_min_7_state_0[0] = Reduce5::combine(reduce_min_7_state_0[0], Reduce5::State{x_1});
              if (outer_raw < 30) {
                reduce_and_14_state_0[l * 2 + lane] = Reduce2::combine(reduce_and_14_state_0[l * 2 + lane], Reduce2::State{x_1});
              }
              reduce_or_14_state_0[0] = Reduce6::combine(reduce_or_14_state_0[0], Reduce6::State{x_1});
              if (outer_raw < 30) {
                reduce_xor_7_state_0[0] = Reduce3::combine(reduce_xor_7_state_0[0], Reduce3::State{x_1});
              }
            }
          }
        }
      }
      reduce_warps<Reduce4>(reduce_sum_21_state_0, exchange_4_0);
      reduce_warps<Reduce5>(reduce_min_7_state_0, exchange_5_0);
      reduce_warps<Reduce6>(reduce_or_14_state_0, exchange_6_0);
      __syncthreads();
      combine_warps<Reduce4, 64, false>(reduce_sum_21_state_0, exchange_4_0);
      combine_warps<Reduce5, 64, false>(reduce_min_7_state_0, exchange_5_0);
      combine_warps<Reduce6, 64, false>(reduce_or_14_state_0, exchange_6_0);
      const int reduce_sum_21 = reduce_sum_21_state_0[0].f0;
      if (outer_raw < 30 && tx < 1) {
        p_reduce_sum_21[outer] = store_as<int>(reduce_sum_21);
      }
      const int reduce_min_7 = reduce_min_7_state_0[0].f0;
      if (outer_raw < 30 && tx < 1) {
        p_reduce_min_7[outer] = store_as<int>(reduce_min_7);
      }
      const int reduce_or_14 = reduce_or_14_state_0[0].f0;
      if (outer_raw < 30 && tx < 1) {
        p_reduce_or_14[outer] = store_as<int>(reduce_or_14);
      }
    }
    reduce_strided<Reduce0, 8, 64, 512, 4, false, false>(reduce_prod_7_state_0, exchange_0_1);
    reduce_strided<Reduce2, 8, 64, 512, 4, false, false>(reduce_and_14_state_0, exchange_2_0);
    reduce_warps<Reduce1>(reduce_max_14_state_0, exchange_1_1);
    reduce_warps<Reduce3>(reduce_xor_7_state_0, exchange_3_1);
    __syncthreads();
    combine_warps<Reduce1, 512, true>(reduce_max_14_state_0, exchange_1_1);
    combine_warps<Reduce3, 512, true>(reduce_xor_7_state_0, exchange_3_1);
    if (first < 4) {
      {
        const int l = 0;
        const int col = l * 128 + tx * 2;
        if (col < 70) {
          Vec<int, 2> p_reduce_prod_7_partial0_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 2; ++lane) {
            p_reduce_prod_7_partial0_0_w_0.v[lane] = store_as<int>(reduce_prod_7_state_0[l * 2 + lane].f0);
          }
          if (to < 1) {
            *reinterpret_cast<Vec<int, 2>*>(p_reduce_prod_7_partial0_0 + (first * 70 + col)) = p_reduce_prod_7_partial0_0_w_0;
          }
        }
      }
    }
    if (first < 4) {
      if (to < 1 && tx < 1) {
        p_reduce_max_14_partial0_0[first] = store_as<int>(reduce_max_14_state_0[0].f0);
      }
    }
    if (first < 4) {
      {
        const int l = 0;
        const int col = l * 128 + tx * 2;
        if (col < 70) {
          Vec<int, 2> p_reduce_and_14_partial0_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 2; ++lane) {
            p_reduce_and_14_partial0_0_w_0.v[lane] = store_as<int>(reduce_and_14_state_0[l * 2 + lane].f0);
          }
          if (to < 1) {
            *reinterpret_cast<Vec<int, 2>*>(p_reduce_and_14_partial0_0 + (first * 70 + col)) = p_reduce_and_14_partial0_0_w_0;
          }
        }
      }
    }
    if (first < 4) {
      if (to < 1 && tx < 1) {
        p_reduce_xor_7_partial0_0[first] = store_as<int>(reduce_xor_7_state_0[0].f0);
      }
    }
  }
  __syncthreads();  // the next task loop takes over the shared memory
  {  // loop 1: outer 30 / 8 threads, row 1 / 1 threads x 1, col 70 / 64 threads x 1 x 2; 4 tasks; row-reduce: 8 rows a block, 64 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = 0;
    const int to = threadIdx.x / 64;
    const int first = blockIdx.x - 4 + (blockIdx.x < 4 ? gridDim.x : 0);
    Reduce7::State reduce_sum_22_state_0[2];
    #pragma unroll
    for (int i = 0; i < 2; ++i) reduce_sum_22_state_0[i] = Reduce7::identity();
    if (first < 4) {
      const int task = first;
      const int outer_raw = task * 8 + to;
      const int outer = clamped(outer_raw, 29);
      Reduce8::State reduce_max_15_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_15_state_0[i] = Reduce8::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 128 + tx * 2;
          if (col < 70) {
            const int at_0__1 = outer * 70 + col;
            const Vec<unsigned char, 2> small_1_v_0 = *reinterpret_cast<const Vec<unsigned char, 2>*>(p_small_1 + (at_0__1));
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const unsigned char small_1 = load_as<unsigned char>(small_1_v_0.v[lane]);
              if (outer_raw < 30) {
                reduce_sum_22_state_0[l * 2 + lane] = Reduce7::combine(reduce_sum_22_state_0[l * 2 + lane], Reduce7::State{small_1});
              }
              reduce_max_15_state_0[0] = Reduce8::combine(reduce_max_15_state_0[0], Reduce8::State{small_1});
            }
          }
        }
      }
      reduce_warps<Reduce8>(reduce_max_15_state_0, exchange_8_0);
      __syncthreads();
      combine_warps<Reduce8, 64, false>(reduce_max_15_state_0, exchange_8_0);
      const unsigned char reduce_max_15 = reduce_max_15_state_0[0].f0;
      if (outer_raw < 30 && tx < 1) {
        p_reduce_max_15[outer] = store_as<unsigned char>(reduce_max_15);
      }
    }
    reduce_strided<Reduce7, 8, 64, 512, 4, false, false>(reduce_sum_22_state_0, exchange_7_1);
    if (first < 4) {
      {
        const int l = 0;
        const int col = l * 128 + tx * 2;
        if (col < 70) {
          Vec<unsigned char, 2> p_reduce_sum_22_partial0_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 2; ++lane) {
            p_reduce_sum_22_partial0_0_w_0.v[lane] = store_as<unsigned char>(reduce_sum_22_state_0[l * 2 + lane].f0);
          }
          if (to < 1) {
            *reinterpret_cast<Vec<unsigned char, 2>*>(p_reduce_sum_22_partial0_0 + (first * 70 + col)) = p_reduce_sum_22_partial0_0_w_0;
          }
        }
      }
    }
  }
  __syncthreads();  // the next task loop takes over the shared memory
  {  // loop 2: outer 30 / 8 threads, row 1 / 1 threads x 1, col 70 / 64 threads x 1 x 2; 4 tasks; row-reduce: 8 rows a block, 64 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = 0;
    const int to = threadIdx.x / 64;
    const int first = blockIdx.x - 8 + (blockIdx.x < 8 ? gridDim.x : 0);
    Reduce9::State reduce_or_15_state_0[2];
    #pragma unroll
    for (int i = 0; i < 2; ++i) reduce_or_15_state_0[i] = Reduce9::identity();
    if (first < 4) {
      const int task = first;
      const int outer_raw = task * 8 + to;
      const int outer = clamped(outer_raw, 29);
      Reduce10::State reduce_and_15_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_and_15_state_0[i] = Reduce10::identity();
      Reduce4::State reduce_sum_23_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_23_state_0[i] = Reduce4::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 128 + tx * 2;
          if (col < 70) {
            const int at_0__2 = outer * 70 + col;
            const Vec<bool, 2> flags_1_v_0 = *reinterpret_cast<const Vec<bool, 2>*>(p_flags_1 + (at_0__2));
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const bool flags_1 = load_as<bool>(flags_1_v_0.v[lane]);
              if (outer_raw < 30) {
                reduce_or_15_state_0[l * 2 + lane] = Reduce9::combine(reduce_or_15_state_0[l * 2 + lane], Reduce9::State{flags_1});
              }
              reduce_and_15_state_0[0] = Reduce10::combine(reduce_and_15_state_0[0], Reduce10::State{flags_1});
              const int convert_element_type_1 = hlo_convert<int, bool>(flags_1);
              reduce_sum_23_state_0[0] = Reduce4::combine(reduce_sum_23_state_0[0], Reduce4::State{convert_element_type_1});
            }
          }
        }
      }
      reduce_warps<Reduce10>(reduce_and_15_state_0, exchange_10_0);
      reduce_warps<Reduce4>(reduce_sum_23_state_0, exchange_4_0__1);
      __syncthreads();
      combine_warps<Reduce10, 64, false>(reduce_and_15_state_0, exchange_10_0);
      combine_warps<Reduce4, 64, false>(reduce_sum_23_state_0, exchange_4_0__1);
      const bool reduce_and_15 = reduce_and_15_state_0[0].f0;
      if (outer_raw < 30 && tx < 1) {
        p_reduce_and_15[outer] = store_as<bool>(reduce_and_15);
      }
      const int reduce_sum_23 = reduce_sum_23_state_0[0].f0;
      if (outer_raw < 30 && tx < 1) {
        p_reduce_sum_23[outer] = store_as<int>(reduce_sum_23);
      }
    }
    reduce_strided<Reduce9, 8, 64, 512, 4, false, false>(reduce_or_15_state_0, exchange_9_1);
    if (first < 4) {
      {
        const int l = 0;
        const int col = l * 128 + tx * 2;
        if (col < 70) {
          Vec<bool, 2> p_reduce_or_15_partial0_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 2; ++lane) {
            p_reduce_or_15_partial0_0_w_0.v[lane] = store_as<bool>(reduce_or_15_state_0[l * 2 + lane].f0);
          }
          if (to < 1) {
            *reinterpret_cast<Vec<bool, 2>*>(p_reduce_or_15_partial0_0 + (first * 70 + col)) = p_reduce_or_15_partial0_0_w_0;
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_xor.7, %reduce_sum.22, %reduce_or.15 before level 1
  if (blockIdx.x < 3) {
    {  // loop 3: outer 1 / 4 threads, row 4 / 1 threads x 4, col 70 / 128 threads x 1 x 1; 1 tasks; column-reduce: 1 rows x 128 threads a block
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 128;
      const int ty = 0;
      const int to = threadIdx.x / 128;
      const int first = blockIdx.x;
      if (first < 1) {
        const int task = first;
        Reduce0::State reduce_prod_7_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_prod_7_state_0__1[i] = Reduce0::identity();
        #pragma unroll
        for (int turn = 0; turn < 4; ++turn) {
          const int k = turn;
          const int row = k + ty;
          {
            const int l = 0;
            const int col_raw = l * 128 + tx;
            const int col = clamped(col_raw, 69);
            const int at_0__3 = row * 70 + col;
            if (to < 1) {
              reduce_prod_7_state_0__1[l] = Reduce0::combine(reduce_prod_7_state_0__1[l], Reduce0::State{load_as<int>(p_reduce_prod_7_partial0_0[at_0__3])});
            }
          }
        }
        {
          const int l = 0;
          const int col = l * 128 + tx;
          if (col < 70) {
            const int reduce_prod_7 = reduce_prod_7_state_0__1[l].f0;
            if (to < 1) {
              p_reduce_prod_7[col] = store_as<int>(reduce_prod_7);
            }
          }
        }
      }
    }
    {  // loop 4: outer 1 / 128 threads, row 1 / 1 threads x 1, col 4 / 4 threads x 1 x 1; 1 tasks; row-reduce: 128 rows a block, 4 threads a row
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 4;
      const int ty = 0;
      const int to = threadIdx.x / 4;
      const int first = int(blockIdx.x) - 1;
      if (first >= 0 && first < 1) {
        const int task = first;
        Reduce1::State reduce_max_14_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_max_14_state_0__1[i] = Reduce1::identity();
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 4 + tx;
            if (to < 1) {
              reduce_max_14_state_0__1[0] = Reduce1::combine(reduce_max_14_state_0__1[0], Reduce1::State{load_as<int>(p_reduce_max_14_partial0_0[col])});
            }
          }
        }
        reduce_lanes<Reduce1, 4, 1>(reduce_max_14_state_0__1);
        const int reduce_max_14 = reduce_max_14_state_0__1[0].f0;
        if (to < 1 && tx < 1) {
          p_reduce_max_14[0] = store_as<int>(reduce_max_14);
        }
      }
    }
    {  // loop 5: outer 1 / 4 threads, row 4 / 1 threads x 4, col 70 / 128 threads x 1 x 1; 1 tasks; column-reduce: 1 rows x 128 threads a block
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 128;
      const int ty = 0;
      const int to = threadIdx.x / 128;
      const int first = int(blockIdx.x) - 2;
      if (first >= 0 && first < 1) {
        const int task = first;
        Reduce2::State reduce_and_14_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_and_14_state_0__1[i] = Reduce2::identity();
        #pragma unroll
        for (int turn = 0; turn < 4; ++turn) {
          const int k = turn;
          const int row = k + ty;
          {
            const int l = 0;
            const int col_raw = l * 128 + tx;
            const int col = clamped(col_raw, 69);
            const int at_0__4 = row * 70 + col;
            if (to < 1) {
              reduce_and_14_state_0__1[l] = Reduce2::combine(reduce_and_14_state_0__1[l], Reduce2::State{load_as<int>(p_reduce_and_14_partial0_0[at_0__4])});
            }
          }
        }
        {
          const int l = 0;
          const int col = l * 128 + tx;
          if (col < 70) {
            const int reduce_and_14 = reduce_and_14_state_0__1[l].f0;
            if (to < 1) {
              p_reduce_and_14[col] = store_as<int>(reduce_and_14);
            }
          }
        }
      }
    }
  } else {
    {  // loop 6: outer 1 / 128 threads, row 1 / 1 threads x 1, col 4 / 4 threads x 1 x 1; 1 tasks; row-reduce: 128 rows a block, 4 threads a row
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 4;
      const int ty = 0;
      const int to = threadIdx.x / 4;
      const int first = int(blockIdx.x) - 3;
      if (first >= 0 && first < 1) {
        const int task = first;
        Reduce3::State reduce_xor_7_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_xor_7_state_0__1[i] = Reduce3::identity();
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 4 + tx;
            if (to < 1) {
              reduce_xor_7_state_0__1[0] = Reduce3::combine(reduce_xor_7_state_0__1[0], Reduce3::State{load_as<int>(p_reduce_xor_7_partial0_0[col])});
            }
          }
        }
        reduce_lanes<Reduce3, 4, 1>(reduce_xor_7_state_0__1);
        const int reduce_xor_7 = reduce_xor_7_state_0__1[0].f0;
        if (to < 1 && tx < 1) {
          p_reduce_xor_7[0] = store_as<int>(reduce_xor_7);
        }
      }
    }
    {  // loop 7: outer 1 / 4 threads, row 4 / 1 threads x 4, col 70 / 128 threads x 1 x 1; 1 tasks; column-reduce: 1 rows x 128 threads a block
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 128;
      const int ty = 0;
      const int to = threadIdx.x / 128;
      const int first = int(blockIdx.x) - 4;
      if (first >= 0 && first < 1) {
        const int task = first;
        Reduce7::State reduce_sum_22_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_sum_22_state_0__1[i] = Reduce7::identity();
        #pragma unroll
        for (int turn = 0; turn < 4; ++turn) {
          const int k = turn;
          const int row = k + ty;
          {
            const int l = 0;
            const int col_raw = l * 128 + tx;
            const int col = clamped(col_raw, 69);
            const int at_0__5 = row * 70 + col;
            if (to < 1) {
              reduce_sum_22_state_0__1[l] = Reduce7::combine(reduce_sum_22_state_0__1[l], Reduce7::State{load_as<unsigned char>(p_reduce_sum_22_partial0_0[at_0__5])});
            }
          }
        }
        {
          const int l = 0;
          const int col = l * 128 + tx;
          if (col < 70) {
            const unsigned char reduce_sum_22 = reduce_sum_22_state_0__1[l].f0;
            if (to < 1) {
              p_reduce_sum_22[col] = store_as<unsigned char>(reduce_sum_22);
            }
          }
        }
      }
    }
    {  // loop 8: outer 1 / 4 threads, row 4 / 1 threads x 4, col 70 / 128 threads x 1 x 1; 1 tasks; column-reduce: 1 rows x 128 threads a block
      const int thread = threadIdx.x;
      const int tx = threadIdx.x % 128;
      const int ty = 0;
      const int to = threadIdx.x / 128;
      const int first = int(blockIdx.x) - 5;
      if (first >= 0 && first < 1) {
        const int task = first;
        Reduce9::State reduce_or_15_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_or_15_state_0__1[i] = Reduce9::identity();
        #pragma unroll
        for (int turn = 0; turn < 4; ++turn) {
          const int k = turn;
          const int row = k + ty;
          {
            const int l = 0;
            const int col_raw = l * 128 + tx;
            const int col = clamped(col_raw, 69);
            const int at_0__6 = row * 70 + col;
            if (to < 1) {
              reduce_or_15_state_0__1[l] = Reduce9::combine(reduce_or_15_state_0__1[l], Reduce9::State{load_as<bool>(p_reduce_or_15_partial0_0[at_0__6])});
            }
          }
        }
        {
          const int l = 0;
          const int col = l * 128 + tx;
          if (col < 70) {
            const bool reduce_or_15 = reduce_or_15_state_0__1[l].f0;
            if (to < 1) {
              p_reduce_or_15[col] = store_as<bool>(reduce_or_15);
            }
          }
        }
      }
    }
  }
}
