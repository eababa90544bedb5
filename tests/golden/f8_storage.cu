#include "astitch.cuh"
// stitch_0: grid 22 x 256 threads, 64 B shared
//   jit(f8_storage)/convert_element_type
//   jit(f8_storage)/mul
//   jit(f8_storage)/reduce_sum
//   max
//   min
//   jit(f8_storage)/reshape
//   jit(f8_storage)/reduce
//   jit(f8_storage)/abs
//   and 6 more
struct Reduce0 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_add(a.f0, b.f0);
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
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{-448.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_maximum(a.f0, b.f0);
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
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_add(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const f8e4m3fn* __restrict__ p_q_1,
    const bf16* __restrict__ p_scale_1,
    const f8e5m2* __restrict__ p_g_1,
    bf16* __restrict__ p_mul_15,
    unsigned char* __restrict__ p_bitcast_convert_type_1,
    float* __restrict__ p_reduce_sum_7,
    f8e4m3fn* __restrict__ p_reduce_11,
    f8e4m3fn* __restrict__ p_convert_element_type_11,
    f8e5m2* __restrict__ p_reduce_10,
    f8e5m2* __restrict__ p_add_3) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(64);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 8);
  ASTITCH_SHARED(Reduce1::State, exchange_1_0, 32, 8);
  {  // loop 0: outer 64 / 4 threads, row 1 / 1 threads x 1, col 304 / 64 threads x 1 x 8; 16 tasks; row-reduce: 4 rows a block, 64 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = 0;
    const int to = threadIdx.x / 64;
    const int first = blockIdx.x;
    if (first < 16) {
      words_of<Vec<bf16, 8>>::type scale_1_kept_0[1];
      {
        const int task = first;
        const int outer = task * 4 + to;
        Reduce0::State reduce_sum_7_state_0[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
        Reduce1::State reduce_11_state_0[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_11_state_0[i] = Reduce1::identity();
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 512 + tx * 8;
            if (col < 304) {
              const int at_0 = outer * 304 + col;
              const Vec<f8e4m3fn, 8> q_1_v_0 = *reinterpret_cast<const Vec<f8e4m3fn, 8>*>(p_q_1 + (at_0));
              const Vec<bf16, 8> scale_1_v_0 = *reinterpret_cast<const Vec<bf16, 8>*>(p_scale_1 + (col));
              scale_1_kept_0[k + l] = to_words(scale_1_v_0);
              Vec<bf16, 8> mul_15_w_0;
              Vec<unsigned char, 8> bitcast_convert_type_1_w_0;
              #pragma unroll
              for (int lane = 0; lane < 8; ++lane) {
                const float q_1 = load_as<float>(q_1_v_0.v[lane]);
                const float convert_element_type_8 = hlo_convert<bf16, f8e4m3fn>(q_1);
                const float scale_1 = bf16_lane(scale_1_v_0, lane);
                const float mul_15 = round_to<bf16>(hlo_multiply(convert_element_type_8, scale_1));
                mul_15_w_0.v[lane] = store_exact<bf16>(mul_15);
                const float convert_element_type_9 = hlo_convert<float, bf16>(mul_15);
                reduce_sum_7_state_0[0] = Reduce0::combine(reduce_sum_7_state_0[0], Reduce0::State{convert_element_type_9});
                reduce_11_state_0[0] = Reduce1::combine(reduce_11_state_0[0], Reduce1::State{q_1});
                const unsigned char bitcast_convert_type_1 = hlo_bitcast<unsigned char, f8e4m3fn>(q_1);
                bitcast_convert_type_1_w_0.v[lane] = store_as<unsigned char>(bitcast_convert_type_1);
              }
              *reinterpret_cast<Vec<bf16, 8>*>(p_mul_15 + (at_0)) = mul_15_w_0;
              *reinterpret_cast<Vec<unsigned char, 8>*>(p_bitcast_convert_type_1 + (at_0)) = bitcast_convert_type_1_w_0;
            }
          }
        }
        reduce_warps<Reduce0>(reduce_sum_7_state_0, exchange_0_0);
        reduce_warps<Reduce1>(reduce_11_state_0, exchange_1_0);
        __syncthreads();
        combine_warps<Reduce0, 64, false>(reduce_sum_7_state_0, exchange_0_0);
        combine_warps<Reduce1, 64, false>(reduce_11_state_0, exchange_1_0);
        const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
        if (tx < 1) {
          p_reduce_sum_7[outer] = store_as<float>(reduce_sum_7);
        }
        const float reduce_11 = reduce_11_state_0[0].f0;
        if (tx < 1) {
          p_reduce_11[outer] = store_as<f8e4m3fn>(reduce_11);
        }
        const float reduce_sum_7__1 = reduce_sum_7_state_0[0].f0;
        {
          const int k = 0;
          {
            const int l = 0;
            const int col = l * 512 + tx * 8;
            if (col < 304) {
              const Vec<bf16, 8> scale_1_v_0__1 = from_words<Vec<bf16, 8>>(scale_1_kept_0[k + l]);
              const int at_0__1 = outer * 304 + col;
              Lanes<f8e4m3fn, 8> convert_element_type_11_w_0;
              #pragma unroll
              for (int lane = 0; lane < 8; ++lane) {
                const float scale_1__1 = bf16_lane(scale_1_v_0__1, lane);
                const float convert_element_type_10 = hlo_convert<float, bf16>(scale_1__1);
                const float mul_22 = hlo_multiply(reduce_sum_7__1, convert_element_type_10);
                const float max_3 = hlo_maximum(-448.0f, mul_22);
                const float min_3 = hlo_minimum(448.0f, max_3);
                const float convert_element_type_11 = hlo_convert<float, float>(min_3);
                convert_element_type_11_w_0.v[lane] = convert_element_type_11;
              }
              store_lanes(p_convert_element_type_11 + (at_0__1), convert_element_type_11_w_0);
            }
          }
        }
      }
    }
  }
  {  // loop 1: outer 20 / 4 threads, row 2 / 1 threads x 2, col 90 / 64 threads x 1 x 2; 5 tasks; column-reduce: 1 rows x 64 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = 0;
    const int to = threadIdx.x / 64;
    const int first = int(blockIdx.x) - 16;
    if (first >= 0 && first < 5) {
      const int task = first;
      const int outer = task * 4 + to;
      Reduce2::State reduce_10_state_0[2];
      #pragma unroll
      for (int i = 0; i < 2; ++i) reduce_10_state_0[i] = Reduce2::identity();
      #pragma unroll
      for (int turn = 0; turn < 2; ++turn) {
        const int k = turn;
        const int row = k + ty;
        {
          const int l = 0;
          const int col_raw = l * 128 + tx * 2;
          const int col = clamped(col_raw, 88);
          const int at_0__2 = outer * 180 + row * 90 + col;
          const Vec<f8e5m2, 2> g_1_v_0 = *reinterpret_cast<const Vec<f8e5m2, 2>*>(p_g_1 + (at_0__2));
          #pragma unroll
          for (int lane = 0; lane < 2; ++lane) {
            const float g_1 = load_as<float>(g_1_v_0.v[lane]);
            reduce_10_state_0[l * 2 + lane] = Reduce2::combine(reduce_10_state_0[l * 2 + lane], Reduce2::State{g_1});
          }
        }
      }
      {
        const int l = 0;
        const int col = l * 128 + tx * 2;
        if (col < 90) {
          const int at_0__3 = outer * 90 + col;
          Lanes<f8e5m2, 2> reduce_10_w_0;
          #pragma unroll
          for (int lane = 0; lane < 2; ++lane) {
            const float reduce_10 = reduce_10_state_0[l * 2 + lane].f0;
            reduce_10_w_0.v[lane] = reduce_10;
          }
          store_lanes(p_reduce_10 + (at_0__3), reduce_10_w_0);
        }
      }
    }
  }
  {  // loop 2: outer 1 / 1 threads, row 1 / 1 threads x 1, col 40x90 / 256 threads x 1 x 16; 1 tasks; element-wise: flat tiles
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = int(blockIdx.x) - 21;
    if (first >= 0) {
      const int task = first;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 4096 + tx * 16;
          if (col < 3600) {
            const Vec<f8e5m2, 16> g_1_v_0__1 = *reinterpret_cast<const Vec<f8e5m2, 16>*>(p_g_1 + (col));
            Lanes<f8e5m2, 16> add_3_w_0;
            #pragma unroll
            for (int lane = 0; lane < 16; ++lane) {
              const float g_1__1 = load_as<float>(g_1_v_0__1.v[lane]);
              const float abs_1 = hlo_abs(g_1__1);
              const float neg_1 = hlo_negate(abs_1);
              const bool gt_3 = hlo_compare_gt(g_1__1, 1.0f);
              const float mul_23 = round_to<f8e5m2>(hlo_multiply(g_1__1, g_1__1));
              const float tanh_1 = round_to<f8e5m2>(hlo_tanh(g_1__1));
              const float select_n_1 = (gt_3 ? mul_23 : tanh_1);
              const float add_3 = hlo_add(neg_1, select_n_1);
              add_3_w_0.v[lane] = add_3;
            }
            store_lanes(p_add_3 + (col), add_3_w_0);
          }
        }
      }
    }
  }
}
