#include "astitch.cuh"
// stitch_0: grid 19 x 512 threads, 64 B shared
//   jit(adam_with_clip)/mul
//   jit(adam_with_clip)/reduce_sum
//   jit(adam_with_clip)/add
//   jit(adam_with_clip)/sqrt
//   jit(adam_with_clip)/div
//   jit(adam_with_clip)/min
//   jit(adam_with_clip)/convert_element_type
//   jit(adam_with_clip)/pow
//   and 1 more
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
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_flat_22__1,
    const float* __restrict__ p_flat_23__1,
    const float* __restrict__ p_flat_24__1,
    const float* __restrict__ p_flat_25__1,
    const float* __restrict__ p_flat_26__1,
    const float* __restrict__ p_flat_27__1,
    const float* __restrict__ p_flat_28__1,
    const float* __restrict__ p_flat_30__1,
    const float* __restrict__ p_flat_31__1,
    const float* __restrict__ p_flat_32__1,
    const float* __restrict__ p_flat_33__1,
    const float* __restrict__ p_flat_34__1,
    const float* __restrict__ p_flat_35__1,
    const float* __restrict__ p_flat_36__1,
    const float* __restrict__ p_flat_37__1,
    const float* __restrict__ p_flat_38__1,
    const float* __restrict__ p_flat_39__1,
    const float* __restrict__ p_flat_40__1,
    const float* __restrict__ p_flat_20__1,
    const float* __restrict__ p_reduce_sum_133_reshape_2,
    const float* __restrict__ p_flat_21__1,
    const float* __restrict__ p_reduce_sum_141_reshape_2,
    const float* __restrict__ p_flat_29__1,
    const float* __restrict__ p_flat_60__1,
    const float* __restrict__ p_flat_0__1,
    const int* __restrict__ p_step_1,
    const float* __restrict__ p_flat_41__1,
    const float* __restrict__ p_constant_197,
    const float* __restrict__ p_constant_196,
    const float* __restrict__ p_flat_61__1,
    const float* __restrict__ p_constant_195,
    const float* __restrict__ p_constant_194,
    const float* __restrict__ p_flat_1__1,
    const float* __restrict__ p_constant_193,
    const float* __restrict__ p_flat_49__1,
    const float* __restrict__ p_constant_157,
    const float* __restrict__ p_constant_156,
    const float* __restrict__ p_flat_69__1,
    const float* __restrict__ p_constant_155,
    const float* __restrict__ p_constant_154,
    const float* __restrict__ p_flat_9__1,
    const float* __restrict__ p_constant_153,
    const float* __restrict__ p_flat_50__1,
    const float* __restrict__ p_flat_70__1,
    const float* __restrict__ p_flat_10__1,
    const float* __restrict__ p_flat_42__1,
    const float* __restrict__ p_flat_62__1,
    const float* __restrict__ p_flat_2__1,
    const float* __restrict__ p_flat_43__1,
    const float* __restrict__ p_flat_63__1,
    const float* __restrict__ p_flat_3__1,
    const float* __restrict__ p_flat_44__1,
    const float* __restrict__ p_flat_64__1,
    const float* __restrict__ p_flat_4__1,
    const float* __restrict__ p_flat_45__1,
    const float* __restrict__ p_flat_65__1,
    const float* __restrict__ p_flat_5__1,
    const float* __restrict__ p_flat_46__1,
    const float* __restrict__ p_flat_66__1,
    const float* __restrict__ p_flat_6__1,
    const float* __restrict__ p_flat_47__1,
    const float* __restrict__ p_flat_67__1,
    const float* __restrict__ p_flat_7__1,
    const float* __restrict__ p_flat_48__1,
    const float* __restrict__ p_flat_68__1,
    const float* __restrict__ p_flat_8__1,
    const float* __restrict__ p_flat_51__1,
    const float* __restrict__ p_flat_71__1,
    const float* __restrict__ p_flat_11__1,
    const float* __restrict__ p_flat_52__1,
    const float* __restrict__ p_flat_72__1,
    const float* __restrict__ p_flat_12__1,
    const float* __restrict__ p_flat_53__1,
    const float* __restrict__ p_flat_73__1,
    const float* __restrict__ p_flat_13__1,
    const float* __restrict__ p_flat_54__1,
    const float* __restrict__ p_flat_74__1,
    const float* __restrict__ p_flat_14__1,
    const float* __restrict__ p_flat_55__1,
    const float* __restrict__ p_flat_75__1,
    const float* __restrict__ p_flat_15__1,
    const float* __restrict__ p_flat_56__1,
    const float* __restrict__ p_flat_76__1,
    const float* __restrict__ p_flat_16__1,
    const float* __restrict__ p_flat_57__1,
    const float* __restrict__ p_flat_77__1,
    const float* __restrict__ p_flat_17__1,
    const float* __restrict__ p_flat_58__1,
    const float* __restrict__ p_flat_78__1,
    const float* __restrict__ p_flat_18__1,
    const float* __restrict__ p_flat_59__1,
    const float* __restrict__ p_flat_79__1,
    const float* __restrict__ p_flat_19__1,
    float* __restrict__ p_add_128,
    float* __restrict__ p_add_129,
    float* __restrict__ p_sub_62,
    float* __restrict__ p_add_131,
    float* __restrict__ p_add_132,
    float* __restrict__ p_sub_65,
    float* __restrict__ p_add_155,
    float* __restrict__ p_add_156,
    float* __restrict__ p_sub_89,
    float* __restrict__ p_add_158,
    float* __restrict__ p_add_159,
    float* __restrict__ p_sub_92,
    float* __restrict__ p_add_134,
    float* __restrict__ p_add_135,
    float* __restrict__ p_sub_68,
    float* __restrict__ p_add_137,
    float* __restrict__ p_add_138,
    float* __restrict__ p_sub_71,
    float* __restrict__ p_add_140,
    float* __restrict__ p_add_141,
    float* __restrict__ p_sub_74,
    float* __restrict__ p_add_143,
    float* __restrict__ p_add_144,
    float* __restrict__ p_sub_77,
    float* __restrict__ p_add_146,
    float* __restrict__ p_add_147,
    float* __restrict__ p_sub_80,
    float* __restrict__ p_add_149,
    float* __restrict__ p_add_150,
    float* __restrict__ p_sub_83,
    float* __restrict__ p_add_152,
    float* __restrict__ p_add_153,
    float* __restrict__ p_sub_86,
    float* __restrict__ p_add_161,
    float* __restrict__ p_add_162,
    float* __restrict__ p_sub_95,
    float* __restrict__ p_add_164,
    float* __restrict__ p_add_165,
    float* __restrict__ p_sub_98,
    float* __restrict__ p_add_167,
    float* __restrict__ p_add_168,
    float* __restrict__ p_sub_101,
    float* __restrict__ p_add_170,
    float* __restrict__ p_add_171,
    float* __restrict__ p_sub_104,
    float* __restrict__ p_add_173,
    float* __restrict__ p_add_174,
    float* __restrict__ p_sub_107,
    float* __restrict__ p_add_176,
    float* __restrict__ p_add_177,
    float* __restrict__ p_sub_110,
    float* __restrict__ p_add_179,
    float* __restrict__ p_add_180,
    float* __restrict__ p_sub_113,
    float* __restrict__ p_add_182,
    float* __restrict__ p_add_183,
    float* __restrict__ p_sub_116,
    float* __restrict__ p_add_185,
    float* __restrict__ p_add_186,
    float* __restrict__ p_sub_119,
    unsigned char* scratch,
    unsigned int* barrier) {
  float* const p_reduce_sum_134 = reinterpret_cast<float*>(scratch + 0);
  float* const p_reduce_sum_135 = reinterpret_cast<float*>(scratch + 16);
  float* const p_reduce_sum_136 = reinterpret_cast<float*>(scratch + 32);
  float* const p_reduce_sum_137 = reinterpret_cast<float*>(scratch + 48);
  float* const p_reduce_sum_138 = reinterpret_cast<float*>(scratch + 64);
  float* const p_reduce_sum_139 = reinterpret_cast<float*>(scratch + 80);
  float* const p_reduce_sum_140 = reinterpret_cast<float*>(scratch + 96);
  float* const p_reduce_sum_142 = reinterpret_cast<float*>(scratch + 112);
  float* const p_reduce_sum_143 = reinterpret_cast<float*>(scratch + 128);
  float* const p_reduce_sum_144 = reinterpret_cast<float*>(scratch + 144);
  float* const p_reduce_sum_145 = reinterpret_cast<float*>(scratch + 160);
  float* const p_reduce_sum_146 = reinterpret_cast<float*>(scratch + 176);
  float* const p_reduce_sum_147 = reinterpret_cast<float*>(scratch + 192);
  float* const p_reduce_sum_148 = reinterpret_cast<float*>(scratch + 208);
  float* const p_reduce_sum_149 = reinterpret_cast<float*>(scratch + 224);
  float* const p_reduce_sum_150 = reinterpret_cast<float*>(scratch + 240);
  float* const p_reduce_sum_151 = reinterpret_cast<float*>(scratch + 256);
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(64);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__2, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__3, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__4, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__5, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__6, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__7, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__8, 0, 16);
  if (blockIdx.x < 8) {
    if (blockIdx.x < 4) {
      if (blockIdx.x < 2) {
        {  // loop 0: outer 1 / 128 threads, row 1 / 1 threads x 1, col 3 / 4 threads x 1 x 1; 1 tasks; row-reduce: 128 rows a block, 4 threads a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x % 4;
          const int ty = 0;
          const int to = threadIdx.x / 4;
          const int first = blockIdx.x;
          if (first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_134_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_134_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 4 + tx;
                if (col < 3) {
                  const float flat_22__1 = load_as<float>(p_flat_22__1[col]);
                  const float mul_259 = hlo_multiply(flat_22__1, flat_22__1);
                  if (to < 1) {
                    reduce_sum_134_state_0[0].f0 = hlo_multiply_add(flat_22__1, flat_22__1, reduce_sum_134_state_0[0].f0);
                  }
                }
              }
            }
            reduce_lanes<Reduce0, 4, 1>(reduce_sum_134_state_0);
            const float reduce_sum_134 = reduce_sum_134_state_0[0].f0;
            if (to < 1 && tx < 1) {
              p_reduce_sum_134[0] = store_as<float>(reduce_sum_134);
            }
          }
        }
        {  // loop 1: outer 1 / 4 threads, row 1 / 1 threads x 1, col 7x13 / 128 threads x 1 x 1; 1 tasks; row-reduce: 4 rows a block, 128 threads a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x % 128;
          const int ty = 0;
          const int to = threadIdx.x / 128;
          const int first = int(blockIdx.x) - 1;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_135_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_135_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 128 + tx;
                if (col < 91) {
                  const float flat_23__1 = load_as<float>(p_flat_23__1[col]);
                  const float mul_260 = hlo_multiply(flat_23__1, flat_23__1);
                  if (to < 1) {
                    reduce_sum_135_state_0[0].f0 = hlo_multiply_add(flat_23__1, flat_23__1, reduce_sum_135_state_0[0].f0);
                  }
                }
              }
            }
            reduce_warps<Reduce0>(reduce_sum_135_state_0, exchange_0_0);
            __syncthreads();
            combine_warps<Reduce0, 128, false>(reduce_sum_135_state_0, exchange_0_0);
            const float reduce_sum_135 = reduce_sum_135_state_0[0].f0;
            if (to < 1 && tx < 1) {
              p_reduce_sum_135[0] = store_as<float>(reduce_sum_135);
            }
          }
        }
      } else {
        {  // loop 2: outer 1 / 32 threads, row 1 / 1 threads x 1, col 64 / 16 threads x 1 x 4; 1 tasks; row-reduce: 32 rows a block, 16 threads a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x % 16;
          const int ty = 0;
          const int to = threadIdx.x / 16;
          const int first = int(blockIdx.x) - 2;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_136_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_136_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 64 + tx * 4;
                const Vec<float, 4> flat_24__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_24__1 + (col));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float flat_24__1 = load_as<float>(flat_24__1_v_0.v[lane]);
                  const float mul_261 = hlo_multiply(flat_24__1, flat_24__1);
                  if (to < 1) {
                    reduce_sum_136_state_0[0].f0 = hlo_multiply_add(flat_24__1, flat_24__1, reduce_sum_136_state_0[0].f0);
                  }
                }
              }
            }
            reduce_lanes<Reduce0, 16, 1>(reduce_sum_136_state_0);
            const float reduce_sum_136 = reduce_sum_136_state_0[0].f0;
            if (to < 1 && tx < 1) {
              p_reduce_sum_136[0] = store_as<float>(reduce_sum_136);
            }
          }
        }
        {  // loop 3: outer 1 / 1 threads, row 1 / 1 threads x 1, col 64x48 / 512 threads x 2 x 4; 1 tasks; row-reduce: a block a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 3;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_137_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_137_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              #pragma unroll
              for (int l = 0; l < 2; ++l) {
                const int col = l * 2048 + tx * 4;
                if (col < 3072) {
                  const Vec<float, 4> flat_25__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_25__1 + (col));
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    const float flat_25__1 = load_as<float>(flat_25__1_v_0.v[lane]);
                    const float mul_262 = hlo_multiply(flat_25__1, flat_25__1);
                    reduce_sum_137_state_0[0].f0 = hlo_multiply_add(flat_25__1, flat_25__1, reduce_sum_137_state_0[0].f0);
                  }
                }
              }
            }
            reduce_warps<Reduce0>(reduce_sum_137_state_0, exchange_0_0__1);
            __syncthreads();
            if (thread < 32) { combine_warps<Reduce0, 512, false>(reduce_sum_137_state_0, exchange_0_0__1); }
            const float reduce_sum_137 = reduce_sum_137_state_0[0].f0;
            if (tx < 1) {
              p_reduce_sum_137[0] = store_as<float>(reduce_sum_137);
            }
          }
        }
      }
    } else {
      if (blockIdx.x < 6) {
        {  // loop 4: outer 1 / 32 threads, row 1 / 1 threads x 1, col 48 / 16 threads x 1 x 4; 1 tasks; row-reduce: 32 rows a block, 16 threads a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x % 16;
          const int ty = 0;
          const int to = threadIdx.x / 16;
          const int first = int(blockIdx.x) - 4;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_138_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_138_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 64 + tx * 4;
                if (col < 48) {
                  const Vec<float, 4> flat_26__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_26__1 + (col));
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    const float flat_26__1 = load_as<float>(flat_26__1_v_0.v[lane]);
                    const float mul_263 = hlo_multiply(flat_26__1, flat_26__1);
                    if (to < 1) {
                      reduce_sum_138_state_0[0].f0 = hlo_multiply_add(flat_26__1, flat_26__1, reduce_sum_138_state_0[0].f0);
                    }
                  }
                }
              }
            }
            reduce_lanes<Reduce0, 16, 1>(reduce_sum_138_state_0);
            const float reduce_sum_138 = reduce_sum_138_state_0[0].f0;
            if (to < 1 && tx < 1) {
              p_reduce_sum_138[0] = store_as<float>(reduce_sum_138);
            }
          }
        }
        {  // loop 5: outer 1 / 2 threads, row 1 / 1 threads x 1, col 3x3x4x16 / 256 threads x 1 x 4; 1 tasks; row-reduce: 2 rows a block, 256 threads a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x % 256;
          const int ty = 0;
          const int to = threadIdx.x / 256;
          const int first = int(blockIdx.x) - 5;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_139_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_139_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 1024 + tx * 4;
                if (col < 576) {
                  const Vec<float, 4> flat_27__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_27__1 + (col));
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    const float flat_27__1 = load_as<float>(flat_27__1_v_0.v[lane]);
                    const float mul_264 = hlo_multiply(flat_27__1, flat_27__1);
                    if (to < 1) {
                      reduce_sum_139_state_0[0].f0 = hlo_multiply_add(flat_27__1, flat_27__1, reduce_sum_139_state_0[0].f0);
                    }
                  }
                }
              }
            }
            reduce_warps<Reduce0>(reduce_sum_139_state_0, exchange_0_0__2);
            __syncthreads();
            combine_warps<Reduce0, 256, false>(reduce_sum_139_state_0, exchange_0_0__2);
            const float reduce_sum_139 = reduce_sum_139_state_0[0].f0;
            if (to < 1 && tx < 1) {
              p_reduce_sum_139[0] = store_as<float>(reduce_sum_139);
            }
          }
        }
      } else {
        {  // loop 6: outer 1 / 128 threads, row 1 / 1 threads x 1, col 16 / 4 threads x 1 x 4; 1 tasks; row-reduce: 128 rows a block, 4 threads a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x % 4;
          const int ty = 0;
          const int to = threadIdx.x / 4;
          const int first = int(blockIdx.x) - 6;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_140_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_140_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 16 + tx * 4;
                const Vec<float, 4> flat_28__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_28__1 + (col));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float flat_28__1 = load_as<float>(flat_28__1_v_0.v[lane]);
                  const float mul_265 = hlo_multiply(flat_28__1, flat_28__1);
                  if (to < 1) {
                    reduce_sum_140_state_0[0].f0 = hlo_multiply_add(flat_28__1, flat_28__1, reduce_sum_140_state_0[0].f0);
                  }
                }
              }
            }
            reduce_lanes<Reduce0, 4, 1>(reduce_sum_140_state_0);
            const float reduce_sum_140 = reduce_sum_140_state_0[0].f0;
            if (to < 1 && tx < 1) {
              p_reduce_sum_140[0] = store_as<float>(reduce_sum_140);
            }
          }
        }
        {  // loop 7: outer 1 / 1 threads, row 1 / 1 threads x 1, col 96x33 / 512 threads x 7 x 1; 1 tasks; row-reduce: a block a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 7;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_142_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_142_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              #pragma unroll
              for (int l = 0; l < 7; ++l) {
                const int col = l * 512 + tx;
                if (col < 3168) {
                  const float flat_30__1 = load_as<float>(p_flat_30__1[col]);
                  const float mul_267 = hlo_multiply(flat_30__1, flat_30__1);
                  reduce_sum_142_state_0[0].f0 = hlo_multiply_add(flat_30__1, flat_30__1, reduce_sum_142_state_0[0].f0);
                }
              }
            }
            reduce_warps<Reduce0>(reduce_sum_142_state_0, exchange_0_0__3);
            __syncthreads();
            if (thread < 32) { combine_warps<Reduce0, 512, false>(reduce_sum_142_state_0, exchange_0_0__3); }
            const float reduce_sum_142 = reduce_sum_142_state_0[0].f0;
            if (tx < 1) {
              p_reduce_sum_142[0] = store_as<float>(reduce_sum_142);
            }
          }
        }
      }
    }
  } else {
    if (blockIdx.x < 12) {
      if (blockIdx.x < 10) {
        {  // loop 8: outer 1 / 8 threads, row 1 / 1 threads x 1, col 33 / 64 threads x 1 x 1; 1 tasks; row-reduce: 8 rows a block, 64 threads a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x % 64;
          const int ty = 0;
          const int to = threadIdx.x / 64;
          const int first = int(blockIdx.x) - 8;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_143_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_143_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 64 + tx;
                if (col < 33) {
                  const float flat_31__1 = load_as<float>(p_flat_31__1[col]);
                  const float mul_268 = hlo_multiply(flat_31__1, flat_31__1);
                  if (to < 1) {
                    reduce_sum_143_state_0[0].f0 = hlo_multiply_add(flat_31__1, flat_31__1, reduce_sum_143_state_0[0].f0);
                  }
                }
              }
            }
            reduce_warps<Reduce0>(reduce_sum_143_state_0, exchange_0_0__4);
            __syncthreads();
            combine_warps<Reduce0, 64, false>(reduce_sum_143_state_0, exchange_0_0__4);
            const float reduce_sum_143 = reduce_sum_143_state_0[0].f0;
            if (to < 1 && tx < 1) {
              p_reduce_sum_143[0] = store_as<float>(reduce_sum_143);
            }
          }
        }
        {  // loop 9: outer 1 / 8 threads, row 1 / 1 threads x 1, col 5x5x8 / 64 threads x 1 x 4; 1 tasks; row-reduce: 8 rows a block, 64 threads a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x % 64;
          const int ty = 0;
          const int to = threadIdx.x / 64;
          const int first = int(blockIdx.x) - 9;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_144_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_144_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 256 + tx * 4;
                if (col < 200) {
                  const Vec<float, 4> flat_32__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_32__1 + (col));
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    const float flat_32__1 = load_as<float>(flat_32__1_v_0.v[lane]);
                    const float mul_269 = hlo_multiply(flat_32__1, flat_32__1);
                    if (to < 1) {
                      reduce_sum_144_state_0[0].f0 = hlo_multiply_add(flat_32__1, flat_32__1, reduce_sum_144_state_0[0].f0);
                    }
                  }
                }
              }
            }
            reduce_warps<Reduce0>(reduce_sum_144_state_0, exchange_0_0__5);
            __syncthreads();
            combine_warps<Reduce0, 64, false>(reduce_sum_144_state_0, exchange_0_0__5);
            const float reduce_sum_144 = reduce_sum_144_state_0[0].f0;
            if (to < 1 && tx < 1) {
              p_reduce_sum_144[0] = store_as<float>(reduce_sum_144);
            }
          }
        }
      } else {
        {  // loop 10: outer 1 / 256 threads, row 1 / 1 threads x 1, col 8 / 2 threads x 1 x 4; 1 tasks; row-reduce: 256 rows a block, 2 threads a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x % 2;
          const int ty = 0;
          const int to = threadIdx.x / 2;
          const int first = int(blockIdx.x) - 10;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_145_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_145_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 8 + tx * 4;
                const Vec<float, 4> flat_33__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_33__1 + (col));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float flat_33__1 = load_as<float>(flat_33__1_v_0.v[lane]);
                  const float mul_270 = hlo_multiply(flat_33__1, flat_33__1);
                  if (to < 1) {
                    reduce_sum_145_state_0[0].f0 = hlo_multiply_add(flat_33__1, flat_33__1, reduce_sum_145_state_0[0].f0);
                  }
                }
              }
            }
            reduce_lanes<Reduce0, 2, 1>(reduce_sum_145_state_0);
            const float reduce_sum_145 = reduce_sum_145_state_0[0].f0;
            if (to < 1 && tx < 1) {
              p_reduce_sum_145[0] = store_as<float>(reduce_sum_145);
            }
          }
        }
        {  // loop 11: outer 1 / 1 threads, row 1 / 1 threads x 1, col 100x20 / 512 threads x 1 x 4; 1 tasks; row-reduce: a block a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 11;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_146_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_146_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 2048 + tx * 4;
                if (col < 2000) {
                  const Vec<float, 4> flat_34__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_34__1 + (col));
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    const float flat_34__1 = load_as<float>(flat_34__1_v_0.v[lane]);
                    const float mul_271 = hlo_multiply(flat_34__1, flat_34__1);
                    reduce_sum_146_state_0[0].f0 = hlo_multiply_add(flat_34__1, flat_34__1, reduce_sum_146_state_0[0].f0);
                  }
                }
              }
            }
            reduce_warps<Reduce0>(reduce_sum_146_state_0, exchange_0_0__6);
            __syncthreads();
            if (thread < 32) { combine_warps<Reduce0, 512, false>(reduce_sum_146_state_0, exchange_0_0__6); }
            const float reduce_sum_146 = reduce_sum_146_state_0[0].f0;
            if (tx < 1) {
              p_reduce_sum_146[0] = store_as<float>(reduce_sum_146);
            }
          }
        }
      }
    } else {
      if (blockIdx.x < 14) {
        {  // loop 12: outer 1 / 64 threads, row 1 / 1 threads x 1, col 20 / 8 threads x 1 x 4; 1 tasks; row-reduce: 64 rows a block, 8 threads a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x % 8;
          const int ty = 0;
          const int to = threadIdx.x / 8;
          const int first = int(blockIdx.x) - 12;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_147_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_147_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 32 + tx * 4;
                if (col < 20) {
                  const Vec<float, 4> flat_35__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_35__1 + (col));
                  #pragma unroll
                  for (int lane = 0; lane < 4; ++lane) {
                    const float flat_35__1 = load_as<float>(flat_35__1_v_0.v[lane]);
                    const float mul_272 = hlo_multiply(flat_35__1, flat_35__1);
                    if (to < 1) {
                      reduce_sum_147_state_0[0].f0 = hlo_multiply_add(flat_35__1, flat_35__1, reduce_sum_147_state_0[0].f0);
                    }
                  }
                }
              }
            }
            reduce_lanes<Reduce0, 8, 1>(reduce_sum_147_state_0);
            const float reduce_sum_147 = reduce_sum_147_state_0[0].f0;
            if (to < 1 && tx < 1) {
              p_reduce_sum_147[0] = store_as<float>(reduce_sum_147);
            }
          }
        }
        {  // loop 13: outer 1 / 32 threads, row 1 / 1 threads x 1, col 2x2x2x2x2 / 16 threads x 1 x 2; 1 tasks; row-reduce: 32 rows a block, 16 threads a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x % 16;
          const int ty = 0;
          const int to = threadIdx.x / 16;
          const int first = int(blockIdx.x) - 13;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_148_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_148_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 32 + tx * 2;
                const Vec<float, 2> flat_36__1_v_0 = *reinterpret_cast<const Vec<float, 2>*>(p_flat_36__1 + (col));
                #pragma unroll
                for (int lane = 0; lane < 2; ++lane) {
                  const float flat_36__1 = load_as<float>(flat_36__1_v_0.v[lane]);
                  const float mul_273 = hlo_multiply(flat_36__1, flat_36__1);
                  if (to < 1) {
                    reduce_sum_148_state_0[0].f0 = hlo_multiply_add(flat_36__1, flat_36__1, reduce_sum_148_state_0[0].f0);
                  }
                }
              }
            }
            reduce_lanes<Reduce0, 16, 1>(reduce_sum_148_state_0);
            const float reduce_sum_148 = reduce_sum_148_state_0[0].f0;
            if (to < 1 && tx < 1) {
              p_reduce_sum_148[0] = store_as<float>(reduce_sum_148);
            }
          }
        }
      } else {
        {  // loop 14: outer 1 / 16 threads, row 1 / 1 threads x 1, col 128 / 32 threads x 1 x 4; 1 tasks; row-reduce: 16 rows a block, 32 threads a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x % 32;
          const int ty = 0;
          const int to = threadIdx.x / 32;
          const int first = int(blockIdx.x) - 14;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_149_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_149_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 128 + tx * 4;
                const Vec<float, 4> flat_37__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_37__1 + (col));
                #pragma unroll
                for (int lane = 0; lane < 4; ++lane) {
                  const float flat_37__1 = load_as<float>(flat_37__1_v_0.v[lane]);
                  const float mul_274 = hlo_multiply(flat_37__1, flat_37__1);
                  if (to < 1) {
                    reduce_sum_149_state_0[0].f0 = hlo_multiply_add(flat_37__1, flat_37__1, reduce_sum_149_state_0[0].f0);
                  }
                }
              }
            }
            reduce_lanes<Reduce0, 32, 1>(reduce_sum_149_state_0);
            const float reduce_sum_149 = reduce_sum_149_state_0[0].f0;
            if (to < 1 && tx < 1) {
              p_reduce_sum_149[0] = store_as<float>(reduce_sum_149);
            }
          }
        }
        {  // loop 15: outer 1 / 1 threads, row 1 / 1 threads x 1, col 31x31 / 512 threads x 2 x 1; 1 tasks; row-reduce: a block a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 15;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_150_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_150_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              #pragma unroll
              for (int l = 0; l < 2; ++l) {
                const int col = l * 512 + tx;
                if (col < 961) {
                  const float flat_38__1 = load_as<float>(p_flat_38__1[col]);
                  const float mul_275 = hlo_multiply(flat_38__1, flat_38__1);
                  reduce_sum_150_state_0[0].f0 = hlo_multiply_add(flat_38__1, flat_38__1, reduce_sum_150_state_0[0].f0);
                }
              }
            }
            reduce_warps<Reduce0>(reduce_sum_150_state_0, exchange_0_0__7);
            __syncthreads();
            if (thread < 32) { combine_warps<Reduce0, 512, false>(reduce_sum_150_state_0, exchange_0_0__7); }
            const float reduce_sum_150 = reduce_sum_150_state_0[0].f0;
            if (tx < 1) {
              p_reduce_sum_150[0] = store_as<float>(reduce_sum_150);
            }
          }
        }
        {  // loop 16: outer 1 / 1 threads, row 1 / 1 threads x 1, col 257 / 512 threads x 1 x 1; 1 tasks; row-reduce: a block a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 16;
          if (first >= 0 && first < 1) {
            const int task = first;
            Reduce0::State reduce_sum_151_state_0[1];
            #pragma unroll
            for (int i = 0; i < 1; ++i) reduce_sum_151_state_0[i] = Reduce0::identity();
            {
              const int k = 0;
              {
                const int l = 0;
                const int col = l * 512 + tx;
                if (col < 257) {
                  const float flat_39__1 = load_as<float>(p_flat_39__1[col]);
                  const float mul_276 = hlo_multiply(flat_39__1, flat_39__1);
                  reduce_sum_151_state_0[0].f0 = hlo_multiply_add(flat_39__1, flat_39__1, reduce_sum_151_state_0[0].f0);
                }
              }
            }
            reduce_warps<Reduce0>(reduce_sum_151_state_0, exchange_0_0__8);
            __syncthreads();
            if (thread < 32) { combine_warps<Reduce0, 512, false>(reduce_sum_151_state_0, exchange_0_0__8); }
            const float reduce_sum_151 = reduce_sum_151_state_0[0].f0;
            if (tx < 1) {
              p_reduce_sum_151[0] = store_as<float>(reduce_sum_151);
            }
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.149, %reduce_sum.150, %reduce_sum.151 before level 1
  if (blockIdx.x < 9) {
    if (blockIdx.x < 4) {
      if (blockIdx.x < 2) {
        {  // loop 17: outer 1 / 1 threads, row 1 / 1 threads x 1, col 96x33 / 512 threads x 7 x 1; 1 tasks; row-reduce: a block a row
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = blockIdx.x;
          if (first < 1) {
            const float flat_40__1 = load_as<float>(p_flat_40__1[0]);
            const float mul_278 = hlo_multiply(flat_40__1, 0.9f);
            const float flat_20__1 = load_as<float>(p_flat_20__1[0]);
            const float mul_257 = hlo_multiply(flat_20__1, flat_20__1);
            const float reduce_sum_133_reshape_2 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1 = load_as<float>(p_flat_21__1[0]);
            const float mul_258 = hlo_multiply(flat_21__1, flat_21__1);
            const float reduce_sum_133_add_0 = hlo_add(reduce_sum_133_reshape_2, mul_258);
            const float add_107 = hlo_add(mul_257, reduce_sum_133_add_0);
            const float reduce_sum_134__1 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108 = hlo_add(add_107, reduce_sum_134__1);
            const float reduce_sum_135__1 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109 = hlo_add(add_108, reduce_sum_135__1);
            const float reduce_sum_136__1 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110 = hlo_add(add_109, reduce_sum_136__1);
            const float reduce_sum_137__1 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111 = hlo_add(add_110, reduce_sum_137__1);
            const float reduce_sum_138__1 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112 = hlo_add(add_111, reduce_sum_138__1);
            const float reduce_sum_139__1 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113 = hlo_add(add_112, reduce_sum_139__1);
            const float reduce_sum_140__1 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114 = hlo_add(add_113, reduce_sum_140__1);
            const float reduce_sum_141_reshape_2 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1 = load_as<float>(p_flat_29__1[0]);
            const float mul_266 = hlo_multiply(flat_29__1, flat_29__1);
            const float reduce_sum_141_add_0 = hlo_add(reduce_sum_141_reshape_2, mul_266);
            const float add_115 = hlo_add(add_114, reduce_sum_141_add_0);
            const float reduce_sum_142__1 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116 = hlo_add(add_115, reduce_sum_142__1);
            const float reduce_sum_143__1 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117 = hlo_add(add_116, reduce_sum_143__1);
            const float reduce_sum_144__1 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118 = hlo_add(add_117, reduce_sum_144__1);
            const float reduce_sum_145__1 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119 = hlo_add(add_118, reduce_sum_145__1);
            const float reduce_sum_146__1 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120 = hlo_add(add_119, reduce_sum_146__1);
            const float reduce_sum_147__1 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121 = hlo_add(add_120, reduce_sum_147__1);
            const float reduce_sum_148__1 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122 = hlo_add(add_121, reduce_sum_148__1);
            const float reduce_sum_149__1 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123 = hlo_add(add_122, reduce_sum_149__1);
            const float reduce_sum_150__1 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124 = hlo_add(add_123, reduce_sum_150__1);
            const float reduce_sum_151__1 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125 = hlo_add(add_124, reduce_sum_151__1);
            const float sqrt_21 = hlo_sqrt(add_125);
            const float add_126 = hlo_add(sqrt_21, 1e-06f);
            const float div_99 = hlo_divide(1.0f, add_126);
            const float min_1 = hlo_minimum(div_99, 1.0f);
            const float mul_277 = hlo_multiply(flat_20__1, min_1);
            const float mul_279 = hlo_multiply(mul_277, 0.1f);
            const float add_128 = hlo_add(mul_278, mul_279);
            const float flat_60__1 = load_as<float>(p_flat_60__1[0]);
            const float mul_280 = hlo_multiply(flat_60__1, 0.999f);
            const float mul_281 = hlo_multiply(mul_277, 0.001f);
            const float mul_282 = hlo_multiply(mul_281, mul_277);
            const float add_129 = hlo_add(mul_280, mul_282);
            const float flat_0__1 = load_as<float>(p_flat_0__1[0]);
            const int step_1 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1 = hlo_convert<float, int>(step_1);
            const float add_127 = hlo_add(convert_element_type_1, 1.0f);
            const float pow_40 = hlo_power(0.9f, add_127);
            const float sub_60 = hlo_subtract(1.0f, pow_40);
            const float div_100 = hlo_divide(add_128, sub_60);
            const float mul_283 = hlo_multiply(div_100, 0.001f);
            const float pow_41 = hlo_power(0.999f, add_127);
            const float sub_61 = hlo_subtract(1.0f, pow_41);
            const float div_101 = hlo_divide(add_129, sub_61);
            const float sqrt_22 = hlo_sqrt(div_101);
            const float add_130 = hlo_add(sqrt_22, 1e-08f);
            const float div_102 = hlo_divide(mul_283, add_130);
            const float sub_62 = hlo_subtract(flat_0__1, div_102);
            const float flat_41__1 = load_as<float>(p_flat_41__1[0]);
            const float constant_197 = load_as<float>(p_constant_197[0]);
            const float mul_286 = hlo_multiply(flat_41__1, constant_197);
            const float mul_285 = hlo_multiply(flat_21__1, min_1);
            const float constant_196 = load_as<float>(p_constant_196[0]);
            const float mul_287 = hlo_multiply(mul_285, constant_196);
            const float add_131 = hlo_add(mul_286, mul_287);
            const float flat_61__1 = load_as<float>(p_flat_61__1[0]);
            const float constant_195 = load_as<float>(p_constant_195[0]);
            const float mul_288 = hlo_multiply(flat_61__1, constant_195);
            const float constant_194 = load_as<float>(p_constant_194[0]);
            const float mul_289 = hlo_multiply(mul_285, constant_194);
            const float mul_290 = hlo_multiply(mul_289, mul_285);
            const float add_132 = hlo_add(mul_288, mul_290);
            part_loads();
            const float flat_1__1 = load_as<float>(p_flat_1__1[0]);
            const float div_104 = hlo_divide(add_131, sub_60);
            const float mul_291 = hlo_multiply(div_104, constant_194);
            const float div_106 = hlo_divide(add_132, sub_61);
            const float sqrt_23 = hlo_sqrt(div_106);
            const float constant_193 = load_as<float>(p_constant_193[0]);
            const float add_133 = hlo_add(sqrt_23, constant_193);
            const float div_107 = hlo_divide(mul_291, add_133);
            const float sub_65 = hlo_subtract(flat_1__1, div_107);
            const float flat_49__1 = load_as<float>(p_flat_49__1[0]);
            const float constant_157 = load_as<float>(p_constant_157[0]);
            const float mul_350 = hlo_multiply(flat_49__1, constant_157);
            const float mul_349 = hlo_multiply(flat_29__1, min_1);
            const float constant_156 = load_as<float>(p_constant_156[0]);
            const float mul_351 = hlo_multiply(mul_349, constant_156);
            const float add_155 = hlo_add(mul_350, mul_351);
            const float flat_69__1 = load_as<float>(p_flat_69__1[0]);
            const float constant_155 = load_as<float>(p_constant_155[0]);
            const float mul_352 = hlo_multiply(flat_69__1, constant_155);
            const float constant_154 = load_as<float>(p_constant_154[0]);
            const float mul_353 = hlo_multiply(mul_349, constant_154);
            const float mul_354 = hlo_multiply(mul_353, mul_349);
            const float add_156 = hlo_add(mul_352, mul_354);
            const float flat_9__1 = load_as<float>(p_flat_9__1[0]);
            const float div_144 = hlo_divide(add_155, sub_60);
            const float mul_355 = hlo_multiply(div_144, constant_154);
            const float div_146 = hlo_divide(add_156, sub_61);
            const float sqrt_31 = hlo_sqrt(div_146);
            const float constant_153 = load_as<float>(p_constant_153[0]);
            const float add_157 = hlo_add(sqrt_31, constant_153);
            const float div_147 = hlo_divide(mul_355, add_157);
            const float sub_89 = hlo_subtract(flat_9__1, div_147);
            {
              const int task = first;
              if (tx < 1) {
                p_add_128[0] = store_as<float>(add_128);
              }
              if (tx < 1) {
                p_add_129[0] = store_as<float>(add_129);
              }
              if (tx < 1) {
                p_sub_62[0] = store_as<float>(sub_62);
              }
              if (tx < 1) {
                p_add_131[0] = store_as<float>(add_131);
              }
              if (tx < 1) {
                p_add_132[0] = store_as<float>(add_132);
              }
              if (tx < 1) {
                p_sub_65[0] = store_as<float>(sub_65);
              }
              if (tx < 1) {
                p_add_155[0] = store_as<float>(add_155);
              }
              if (tx < 1) {
                p_add_156[0] = store_as<float>(add_156);
              }
              if (tx < 1) {
                p_sub_89[0] = store_as<float>(sub_89);
              }
              {
                const int k = 0;
                #pragma unroll
                for (int l = 0; l < 7; ++l) {
                  const int col = l * 512 + tx;
                  if (col < 3168) {
                    const float flat_50__1 = load_as<float>(p_flat_50__1[col]);
                    const float mul_358 = hlo_multiply(flat_50__1, 0.9f);
                    const float flat_30__1__1 = load_as<float>(p_flat_30__1[col]);
                    const float mul_357 = hlo_multiply(flat_30__1__1, min_1);
                    const float mul_359 = hlo_multiply(mul_357, 0.1f);
                    const float add_158 = hlo_add(mul_358, mul_359);
                    p_add_158[col] = store_as<float>(add_158);
                    const float flat_70__1 = load_as<float>(p_flat_70__1[col]);
                    const float mul_360 = hlo_multiply(flat_70__1, 0.999f);
                    const float mul_361 = hlo_multiply(mul_357, 0.001f);
                    const float mul_362 = hlo_multiply(mul_361, mul_357);
                    const float add_159 = hlo_add(mul_360, mul_362);
                    p_add_159[col] = store_as<float>(add_159);
                    const float flat_10__1 = load_as<float>(p_flat_10__1[col]);
                    const float div_149 = hlo_divide_shared(add_158, sub_60);
                    const float mul_363 = hlo_multiply(div_149, 0.001f);
                    const float div_151 = hlo_divide_shared(add_159, sub_61);
                    const float sqrt_32 = hlo_sqrt(div_151);
                    const float add_160 = hlo_add(sqrt_32, 1e-08f);
                    const float div_152 = hlo_divide(mul_363, add_160);
                    const float sub_92 = hlo_subtract(flat_10__1, div_152);
                    p_sub_92[col] = store_as<float>(sub_92);
                  }
                }
              }
            }
          }
        }
        {  // loop 18: outer 1 / 1 threads, row 1 / 1 threads x 1, col 3 / 512 threads x 1 x 1; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 1;
          if (first >= 0 && first < 1) {
            const float flat_20__1__1 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__1 = hlo_multiply(flat_20__1__1, flat_20__1__1);
            const float reduce_sum_133_reshape_2__1 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__1 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__1 = hlo_multiply(flat_21__1__1, flat_21__1__1);
            const float reduce_sum_133_add_0__1 = hlo_add(reduce_sum_133_reshape_2__1, mul_258__1);
            const float add_107__1 = hlo_add(mul_257__1, reduce_sum_133_add_0__1);
            const float reduce_sum_134__2 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__1 = hlo_add(add_107__1, reduce_sum_134__2);
            const float reduce_sum_135__2 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__1 = hlo_add(add_108__1, reduce_sum_135__2);
            const float reduce_sum_136__2 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__1 = hlo_add(add_109__1, reduce_sum_136__2);
            const float reduce_sum_137__2 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__1 = hlo_add(add_110__1, reduce_sum_137__2);
            const float reduce_sum_138__2 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__1 = hlo_add(add_111__1, reduce_sum_138__2);
            const float reduce_sum_139__2 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__1 = hlo_add(add_112__1, reduce_sum_139__2);
            const float reduce_sum_140__2 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__1 = hlo_add(add_113__1, reduce_sum_140__2);
            const float reduce_sum_141_reshape_2__1 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__1 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__1 = hlo_multiply(flat_29__1__1, flat_29__1__1);
            const float reduce_sum_141_add_0__1 = hlo_add(reduce_sum_141_reshape_2__1, mul_266__1);
            const float add_115__1 = hlo_add(add_114__1, reduce_sum_141_add_0__1);
            const float reduce_sum_142__2 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__1 = hlo_add(add_115__1, reduce_sum_142__2);
            const float reduce_sum_143__2 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__1 = hlo_add(add_116__1, reduce_sum_143__2);
            const float reduce_sum_144__2 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__1 = hlo_add(add_117__1, reduce_sum_144__2);
            const float reduce_sum_145__2 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__1 = hlo_add(add_118__1, reduce_sum_145__2);
            const float reduce_sum_146__2 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__1 = hlo_add(add_119__1, reduce_sum_146__2);
            const float reduce_sum_147__2 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__1 = hlo_add(add_120__1, reduce_sum_147__2);
            const float reduce_sum_148__2 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__1 = hlo_add(add_121__1, reduce_sum_148__2);
            const float reduce_sum_149__2 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__1 = hlo_add(add_122__1, reduce_sum_149__2);
            const float reduce_sum_150__2 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__1 = hlo_add(add_123__1, reduce_sum_150__2);
            const float reduce_sum_151__2 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__1 = hlo_add(add_124__1, reduce_sum_151__2);
            const float sqrt_21__1 = hlo_sqrt(add_125__1);
            const float add_126__1 = hlo_add(sqrt_21__1, 1e-06f);
            const float div_99__1 = hlo_divide(1.0f, add_126__1);
            const float min_1__1 = hlo_minimum(div_99__1, 1.0f);
            const int step_1__1 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__1 = hlo_convert<float, int>(step_1__1);
            const float add_127__1 = hlo_add(convert_element_type_1__1, 1.0f);
            const float pow_40__1 = hlo_power(0.9f, add_127__1);
            const float sub_60__1 = hlo_subtract(1.0f, pow_40__1);
            const float pow_41__1 = hlo_power(0.999f, add_127__1);
            const float sub_61__1 = hlo_subtract(1.0f, pow_41__1);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 512 + tx;
                  if (col < 3) {
                    const float flat_42__1 = load_as<float>(p_flat_42__1[col]);
                    const float mul_294 = hlo_multiply(flat_42__1, 0.9f);
                    const float flat_22__1__1 = load_as<float>(p_flat_22__1[col]);
                    const float mul_293 = hlo_multiply(flat_22__1__1, min_1__1);
                    const float mul_295 = hlo_multiply(mul_293, 0.1f);
                    const float add_134 = hlo_add(mul_294, mul_295);
                    p_add_134[col] = store_as<float>(add_134);
                    const float flat_62__1 = load_as<float>(p_flat_62__1[col]);
                    const float mul_296 = hlo_multiply(flat_62__1, 0.999f);
                    const float mul_297 = hlo_multiply(mul_293, 0.001f);
                    const float mul_298 = hlo_multiply(mul_297, mul_293);
                    const float add_135 = hlo_add(mul_296, mul_298);
                    p_add_135[col] = store_as<float>(add_135);
                    const float flat_2__1 = load_as<float>(p_flat_2__1[col]);
                    const float div_109 = hlo_divide_shared(add_134, sub_60__1);
                    const float mul_299 = hlo_multiply(div_109, 0.001f);
                    const float div_111 = hlo_divide_shared(add_135, sub_61__1);
                    const float sqrt_24 = hlo_sqrt(div_111);
                    const float add_136 = hlo_add(sqrt_24, 1e-08f);
                    const float div_112 = hlo_divide(mul_299, add_136);
                    const float sub_68 = hlo_subtract(flat_2__1, div_112);
                    p_sub_68[col] = store_as<float>(sub_68);
                  }
                }
              }
            }
          }
        }
      } else {
        {  // loop 19: outer 1 / 1 threads, row 1 / 1 threads x 1, col 7x13 / 512 threads x 1 x 1; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 2;
          if (first >= 0 && first < 1) {
            const float flat_20__1__2 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__2 = hlo_multiply(flat_20__1__2, flat_20__1__2);
            const float reduce_sum_133_reshape_2__2 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__2 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__2 = hlo_multiply(flat_21__1__2, flat_21__1__2);
            const float reduce_sum_133_add_0__2 = hlo_add(reduce_sum_133_reshape_2__2, mul_258__2);
            const float add_107__2 = hlo_add(mul_257__2, reduce_sum_133_add_0__2);
            const float reduce_sum_134__3 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__2 = hlo_add(add_107__2, reduce_sum_134__3);
            const float reduce_sum_135__3 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__2 = hlo_add(add_108__2, reduce_sum_135__3);
            const float reduce_sum_136__3 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__2 = hlo_add(add_109__2, reduce_sum_136__3);
            const float reduce_sum_137__3 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__2 = hlo_add(add_110__2, reduce_sum_137__3);
            const float reduce_sum_138__3 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__2 = hlo_add(add_111__2, reduce_sum_138__3);
            const float reduce_sum_139__3 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__2 = hlo_add(add_112__2, reduce_sum_139__3);
            const float reduce_sum_140__3 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__2 = hlo_add(add_113__2, reduce_sum_140__3);
            const float reduce_sum_141_reshape_2__2 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__2 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__2 = hlo_multiply(flat_29__1__2, flat_29__1__2);
            const float reduce_sum_141_add_0__2 = hlo_add(reduce_sum_141_reshape_2__2, mul_266__2);
            const float add_115__2 = hlo_add(add_114__2, reduce_sum_141_add_0__2);
            const float reduce_sum_142__3 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__2 = hlo_add(add_115__2, reduce_sum_142__3);
            const float reduce_sum_143__3 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__2 = hlo_add(add_116__2, reduce_sum_143__3);
            const float reduce_sum_144__3 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__2 = hlo_add(add_117__2, reduce_sum_144__3);
            const float reduce_sum_145__3 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__2 = hlo_add(add_118__2, reduce_sum_145__3);
            const float reduce_sum_146__3 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__2 = hlo_add(add_119__2, reduce_sum_146__3);
            const float reduce_sum_147__3 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__2 = hlo_add(add_120__2, reduce_sum_147__3);
            const float reduce_sum_148__3 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__2 = hlo_add(add_121__2, reduce_sum_148__3);
            const float reduce_sum_149__3 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__2 = hlo_add(add_122__2, reduce_sum_149__3);
            const float reduce_sum_150__3 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__2 = hlo_add(add_123__2, reduce_sum_150__3);
            const float reduce_sum_151__3 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__2 = hlo_add(add_124__2, reduce_sum_151__3);
            const float sqrt_21__2 = hlo_sqrt(add_125__2);
            const float add_126__2 = hlo_add(sqrt_21__2, 1e-06f);
            const float div_99__2 = hlo_divide(1.0f, add_126__2);
            const float min_1__2 = hlo_minimum(div_99__2, 1.0f);
            const int step_1__2 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__2 = hlo_convert<float, int>(step_1__2);
            const float add_127__2 = hlo_add(convert_element_type_1__2, 1.0f);
            const float pow_40__2 = hlo_power(0.9f, add_127__2);
            const float sub_60__2 = hlo_subtract(1.0f, pow_40__2);
            const float pow_41__2 = hlo_power(0.999f, add_127__2);
            const float sub_61__2 = hlo_subtract(1.0f, pow_41__2);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 512 + tx;
                  if (col < 91) {
                    const float flat_43__1 = load_as<float>(p_flat_43__1[col]);
                    const float mul_302 = hlo_multiply(flat_43__1, 0.9f);
                    const float flat_23__1__1 = load_as<float>(p_flat_23__1[col]);
                    const float mul_301 = hlo_multiply(flat_23__1__1, min_1__2);
                    const float mul_303 = hlo_multiply(mul_301, 0.1f);
                    const float add_137 = hlo_add(mul_302, mul_303);
                    p_add_137[col] = store_as<float>(add_137);
                    const float flat_63__1 = load_as<float>(p_flat_63__1[col]);
                    const float mul_304 = hlo_multiply(flat_63__1, 0.999f);
                    const float mul_305 = hlo_multiply(mul_301, 0.001f);
                    const float mul_306 = hlo_multiply(mul_305, mul_301);
                    const float add_138 = hlo_add(mul_304, mul_306);
                    p_add_138[col] = store_as<float>(add_138);
                    const float flat_3__1 = load_as<float>(p_flat_3__1[col]);
                    const float div_114 = hlo_divide_shared(add_137, sub_60__2);
                    const float mul_307 = hlo_multiply(div_114, 0.001f);
                    const float div_116 = hlo_divide_shared(add_138, sub_61__2);
                    const float sqrt_25 = hlo_sqrt(div_116);
                    const float add_139 = hlo_add(sqrt_25, 1e-08f);
                    const float div_117 = hlo_divide(mul_307, add_139);
                    const float sub_71 = hlo_subtract(flat_3__1, div_117);
                    p_sub_71[col] = store_as<float>(sub_71);
                  }
                }
              }
            }
          }
        }
        {  // loop 20: outer 1 / 1 threads, row 1 / 1 threads x 1, col 64 / 512 threads x 1 x 4; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 3;
          if (first >= 0 && first < 1) {
            const float flat_20__1__3 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__3 = hlo_multiply(flat_20__1__3, flat_20__1__3);
            const float reduce_sum_133_reshape_2__3 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__3 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__3 = hlo_multiply(flat_21__1__3, flat_21__1__3);
            const float reduce_sum_133_add_0__3 = hlo_add(reduce_sum_133_reshape_2__3, mul_258__3);
            const float add_107__3 = hlo_add(mul_257__3, reduce_sum_133_add_0__3);
            const float reduce_sum_134__4 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__3 = hlo_add(add_107__3, reduce_sum_134__4);
            const float reduce_sum_135__4 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__3 = hlo_add(add_108__3, reduce_sum_135__4);
            const float reduce_sum_136__4 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__3 = hlo_add(add_109__3, reduce_sum_136__4);
            const float reduce_sum_137__4 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__3 = hlo_add(add_110__3, reduce_sum_137__4);
            const float reduce_sum_138__4 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__3 = hlo_add(add_111__3, reduce_sum_138__4);
            const float reduce_sum_139__4 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__3 = hlo_add(add_112__3, reduce_sum_139__4);
            const float reduce_sum_140__4 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__3 = hlo_add(add_113__3, reduce_sum_140__4);
            const float reduce_sum_141_reshape_2__3 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__3 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__3 = hlo_multiply(flat_29__1__3, flat_29__1__3);
            const float reduce_sum_141_add_0__3 = hlo_add(reduce_sum_141_reshape_2__3, mul_266__3);
            const float add_115__3 = hlo_add(add_114__3, reduce_sum_141_add_0__3);
            const float reduce_sum_142__4 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__3 = hlo_add(add_115__3, reduce_sum_142__4);
            const float reduce_sum_143__4 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__3 = hlo_add(add_116__3, reduce_sum_143__4);
            const float reduce_sum_144__4 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__3 = hlo_add(add_117__3, reduce_sum_144__4);
            const float reduce_sum_145__4 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__3 = hlo_add(add_118__3, reduce_sum_145__4);
            const float reduce_sum_146__4 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__3 = hlo_add(add_119__3, reduce_sum_146__4);
            const float reduce_sum_147__4 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__3 = hlo_add(add_120__3, reduce_sum_147__4);
            const float reduce_sum_148__4 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__3 = hlo_add(add_121__3, reduce_sum_148__4);
            const float reduce_sum_149__4 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__3 = hlo_add(add_122__3, reduce_sum_149__4);
            const float reduce_sum_150__4 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__3 = hlo_add(add_123__3, reduce_sum_150__4);
            const float reduce_sum_151__4 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__3 = hlo_add(add_124__3, reduce_sum_151__4);
            const float sqrt_21__3 = hlo_sqrt(add_125__3);
            const float add_126__3 = hlo_add(sqrt_21__3, 1e-06f);
            const float div_99__3 = hlo_divide(1.0f, add_126__3);
            const float min_1__3 = hlo_minimum(div_99__3, 1.0f);
            const int step_1__3 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__3 = hlo_convert<float, int>(step_1__3);
            const float add_127__3 = hlo_add(convert_element_type_1__3, 1.0f);
            const float pow_40__3 = hlo_power(0.9f, add_127__3);
            const float sub_60__3 = hlo_subtract(1.0f, pow_40__3);
            const float pow_41__3 = hlo_power(0.999f, add_127__3);
            const float sub_61__3 = hlo_subtract(1.0f, pow_41__3);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 2048 + tx * 4;
                  if (col < 64) {
                    const Vec<float, 4> flat_44__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_44__1 + (col));
                    const Vec<float, 4> flat_24__1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_24__1 + (col));
                    Vec<float, 4> add_140_w_0;
                    const Vec<float, 4> flat_64__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_64__1 + (col));
                    Vec<float, 4> add_141_w_0;
                    const Vec<float, 4> flat_4__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_4__1 + (col));
                    Vec<float, 4> sub_74_w_0;
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      const float flat_44__1 = load_as<float>(flat_44__1_v_0.v[lane]);
                      const float mul_310 = hlo_multiply(flat_44__1, 0.9f);
                      const float flat_24__1__1 = load_as<float>(flat_24__1_v_0__1.v[lane]);
                      const float mul_309 = hlo_multiply(flat_24__1__1, min_1__3);
                      const float mul_311 = hlo_multiply(mul_309, 0.1f);
                      const float add_140 = hlo_add(mul_310, mul_311);
                      add_140_w_0.v[lane] = store_as<float>(add_140);
                      const float flat_64__1 = load_as<float>(flat_64__1_v_0.v[lane]);
                      const float mul_312 = hlo_multiply(flat_64__1, 0.999f);
                      const float mul_313 = hlo_multiply(mul_309, 0.001f);
                      const float mul_314 = hlo_multiply(mul_313, mul_309);
                      const float add_141 = hlo_add(mul_312, mul_314);
                      add_141_w_0.v[lane] = store_as<float>(add_141);
                      const float flat_4__1 = load_as<float>(flat_4__1_v_0.v[lane]);
                      const float div_119 = hlo_divide_shared(add_140, sub_60__3);
                      const float mul_315 = hlo_multiply(div_119, 0.001f);
                      const float div_121 = hlo_divide_shared(add_141, sub_61__3);
                      const float sqrt_26 = hlo_sqrt(div_121);
                      const float add_142 = hlo_add(sqrt_26, 1e-08f);
                      const float div_122 = hlo_divide(mul_315, add_142);
                      const float sub_74 = hlo_subtract(flat_4__1, div_122);
                      sub_74_w_0.v[lane] = store_as<float>(sub_74);
                    }
                    *reinterpret_cast<Vec<float, 4>*>(p_add_140 + (col)) = add_140_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_add_141 + (col)) = add_141_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_sub_74 + (col)) = sub_74_w_0;
                  }
                }
              }
            }
          }
        }
      }
    } else {
      if (blockIdx.x < 7) {
        {  // loop 21: outer 1 / 1 threads, row 1 / 1 threads x 1, col 64x48 / 512 threads x 1 x 4; 2 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 4;
          if (first >= 0 && first < 2) {
            const float flat_20__1__4 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__4 = hlo_multiply(flat_20__1__4, flat_20__1__4);
            const float reduce_sum_133_reshape_2__4 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__4 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__4 = hlo_multiply(flat_21__1__4, flat_21__1__4);
            const float reduce_sum_133_add_0__4 = hlo_add(reduce_sum_133_reshape_2__4, mul_258__4);
            const float add_107__4 = hlo_add(mul_257__4, reduce_sum_133_add_0__4);
            const float reduce_sum_134__5 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__4 = hlo_add(add_107__4, reduce_sum_134__5);
            const float reduce_sum_135__5 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__4 = hlo_add(add_108__4, reduce_sum_135__5);
            const float reduce_sum_136__5 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__4 = hlo_add(add_109__4, reduce_sum_136__5);
            const float reduce_sum_137__5 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__4 = hlo_add(add_110__4, reduce_sum_137__5);
            const float reduce_sum_138__5 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__4 = hlo_add(add_111__4, reduce_sum_138__5);
            const float reduce_sum_139__5 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__4 = hlo_add(add_112__4, reduce_sum_139__5);
            const float reduce_sum_140__5 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__4 = hlo_add(add_113__4, reduce_sum_140__5);
            const float reduce_sum_141_reshape_2__4 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__4 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__4 = hlo_multiply(flat_29__1__4, flat_29__1__4);
            const float reduce_sum_141_add_0__4 = hlo_add(reduce_sum_141_reshape_2__4, mul_266__4);
            const float add_115__4 = hlo_add(add_114__4, reduce_sum_141_add_0__4);
            const float reduce_sum_142__5 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__4 = hlo_add(add_115__4, reduce_sum_142__5);
            const float reduce_sum_143__5 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__4 = hlo_add(add_116__4, reduce_sum_143__5);
            const float reduce_sum_144__5 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__4 = hlo_add(add_117__4, reduce_sum_144__5);
            const float reduce_sum_145__5 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__4 = hlo_add(add_118__4, reduce_sum_145__5);
            const float reduce_sum_146__5 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__4 = hlo_add(add_119__4, reduce_sum_146__5);
            const float reduce_sum_147__5 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__4 = hlo_add(add_120__4, reduce_sum_147__5);
            const float reduce_sum_148__5 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__4 = hlo_add(add_121__4, reduce_sum_148__5);
            const float reduce_sum_149__5 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__4 = hlo_add(add_122__4, reduce_sum_149__5);
            const float reduce_sum_150__5 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__4 = hlo_add(add_123__4, reduce_sum_150__5);
            const float reduce_sum_151__5 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__4 = hlo_add(add_124__4, reduce_sum_151__5);
            const float sqrt_21__4 = hlo_sqrt(add_125__4);
            const float add_126__4 = hlo_add(sqrt_21__4, 1e-06f);
            const float div_99__4 = hlo_divide(1.0f, add_126__4);
            const float min_1__4 = hlo_minimum(div_99__4, 1.0f);
            const int step_1__4 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__4 = hlo_convert<float, int>(step_1__4);
            const float add_127__4 = hlo_add(convert_element_type_1__4, 1.0f);
            const float pow_40__4 = hlo_power(0.9f, add_127__4);
            const float sub_60__4 = hlo_subtract(1.0f, pow_40__4);
            const float pow_41__4 = hlo_power(0.999f, add_127__4);
            const float sub_61__4 = hlo_subtract(1.0f, pow_41__4);
            {
              const int task = first;
              const int col_tile = task;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 2048 + tx * 4 + col_tile * 2048;
                  if (col < 3072) {
                    const Vec<float, 4> flat_45__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_45__1 + (col));
                    const Vec<float, 4> flat_25__1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_25__1 + (col));
                    Vec<float, 4> add_143_w_0;
                    const Vec<float, 4> flat_65__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_65__1 + (col));
                    Vec<float, 4> add_144_w_0;
                    const Vec<float, 4> flat_5__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_5__1 + (col));
                    Vec<float, 4> sub_77_w_0;
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      const float flat_45__1 = load_as<float>(flat_45__1_v_0.v[lane]);
                      const float mul_318 = hlo_multiply(flat_45__1, 0.9f);
                      const float flat_25__1__1 = load_as<float>(flat_25__1_v_0__1.v[lane]);
                      const float mul_317 = hlo_multiply(flat_25__1__1, min_1__4);
                      const float mul_319 = hlo_multiply(mul_317, 0.1f);
                      const float add_143 = hlo_add(mul_318, mul_319);
                      add_143_w_0.v[lane] = store_as<float>(add_143);
                      const float flat_65__1 = load_as<float>(flat_65__1_v_0.v[lane]);
                      const float mul_320 = hlo_multiply(flat_65__1, 0.999f);
                      const float mul_321 = hlo_multiply(mul_317, 0.001f);
                      const float mul_322 = hlo_multiply(mul_321, mul_317);
                      const float add_144 = hlo_add(mul_320, mul_322);
                      add_144_w_0.v[lane] = store_as<float>(add_144);
                      const float flat_5__1 = load_as<float>(flat_5__1_v_0.v[lane]);
                      const float div_124 = hlo_divide_shared(add_143, sub_60__4);
                      const float mul_323 = hlo_multiply(div_124, 0.001f);
                      const float div_126 = hlo_divide_shared(add_144, sub_61__4);
                      const float sqrt_27 = hlo_sqrt(div_126);
                      const float add_145 = hlo_add(sqrt_27, 1e-08f);
                      const float div_127 = hlo_divide(mul_323, add_145);
                      const float sub_77 = hlo_subtract(flat_5__1, div_127);
                      sub_77_w_0.v[lane] = store_as<float>(sub_77);
                    }
                    *reinterpret_cast<Vec<float, 4>*>(p_add_143 + (col)) = add_143_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_add_144 + (col)) = add_144_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_sub_77 + (col)) = sub_77_w_0;
                  }
                }
              }
            }
          }
        }
        {  // loop 22: outer 1 / 1 threads, row 1 / 1 threads x 1, col 48 / 512 threads x 1 x 4; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 6;
          if (first >= 0 && first < 1) {
            const float flat_20__1__5 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__5 = hlo_multiply(flat_20__1__5, flat_20__1__5);
            const float reduce_sum_133_reshape_2__5 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__5 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__5 = hlo_multiply(flat_21__1__5, flat_21__1__5);
            const float reduce_sum_133_add_0__5 = hlo_add(reduce_sum_133_reshape_2__5, mul_258__5);
            const float add_107__5 = hlo_add(mul_257__5, reduce_sum_133_add_0__5);
            const float reduce_sum_134__6 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__5 = hlo_add(add_107__5, reduce_sum_134__6);
            const float reduce_sum_135__6 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__5 = hlo_add(add_108__5, reduce_sum_135__6);
            const float reduce_sum_136__6 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__5 = hlo_add(add_109__5, reduce_sum_136__6);
            const float reduce_sum_137__6 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__5 = hlo_add(add_110__5, reduce_sum_137__6);
            const float reduce_sum_138__6 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__5 = hlo_add(add_111__5, reduce_sum_138__6);
            const float reduce_sum_139__6 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__5 = hlo_add(add_112__5, reduce_sum_139__6);
            const float reduce_sum_140__6 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__5 = hlo_add(add_113__5, reduce_sum_140__6);
            const float reduce_sum_141_reshape_2__5 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__5 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__5 = hlo_multiply(flat_29__1__5, flat_29__1__5);
            const float reduce_sum_141_add_0__5 = hlo_add(reduce_sum_141_reshape_2__5, mul_266__5);
            const float add_115__5 = hlo_add(add_114__5, reduce_sum_141_add_0__5);
            const float reduce_sum_142__6 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__5 = hlo_add(add_115__5, reduce_sum_142__6);
            const float reduce_sum_143__6 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__5 = hlo_add(add_116__5, reduce_sum_143__6);
            const float reduce_sum_144__6 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__5 = hlo_add(add_117__5, reduce_sum_144__6);
            const float reduce_sum_145__6 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__5 = hlo_add(add_118__5, reduce_sum_145__6);
            const float reduce_sum_146__6 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__5 = hlo_add(add_119__5, reduce_sum_146__6);
            const float reduce_sum_147__6 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__5 = hlo_add(add_120__5, reduce_sum_147__6);
            const float reduce_sum_148__6 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__5 = hlo_add(add_121__5, reduce_sum_148__6);
            const float reduce_sum_149__6 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__5 = hlo_add(add_122__5, reduce_sum_149__6);
            const float reduce_sum_150__6 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__5 = hlo_add(add_123__5, reduce_sum_150__6);
            const float reduce_sum_151__6 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__5 = hlo_add(add_124__5, reduce_sum_151__6);
            const float sqrt_21__5 = hlo_sqrt(add_125__5);
            const float add_126__5 = hlo_add(sqrt_21__5, 1e-06f);
            const float div_99__5 = hlo_divide(1.0f, add_126__5);
            const float min_1__5 = hlo_minimum(div_99__5, 1.0f);
            const int step_1__5 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__5 = hlo_convert<float, int>(step_1__5);
            const float add_127__5 = hlo_add(convert_element_type_1__5, 1.0f);
            const float pow_40__5 = hlo_power(0.9f, add_127__5);
            const float sub_60__5 = hlo_subtract(1.0f, pow_40__5);
            const float pow_41__5 = hlo_power(0.999f, add_127__5);
            const float sub_61__5 = hlo_subtract(1.0f, pow_41__5);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 2048 + tx * 4;
                  if (col < 48) {
                    const Vec<float, 4> flat_46__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_46__1 + (col));
                    const Vec<float, 4> flat_26__1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_26__1 + (col));
                    Vec<float, 4> add_146_w_0;
                    const Vec<float, 4> flat_66__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_66__1 + (col));
                    Vec<float, 4> add_147_w_0;
                    const Vec<float, 4> flat_6__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_6__1 + (col));
                    Vec<float, 4> sub_80_w_0;
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      const float flat_46__1 = load_as<float>(flat_46__1_v_0.v[lane]);
                      const float mul_326 = hlo_multiply(flat_46__1, 0.9f);
                      const float flat_26__1__1 = load_as<float>(flat_26__1_v_0__1.v[lane]);
                      const float mul_325 = hlo_multiply(flat_26__1__1, min_1__5);
                      const float mul_327 = hlo_multiply(mul_325, 0.1f);
                      const float add_146 = hlo_add(mul_326, mul_327);
                      add_146_w_0.v[lane] = store_as<float>(add_146);
                      const float flat_66__1 = load_as<float>(flat_66__1_v_0.v[lane]);
                      const float mul_328 = hlo_multiply(flat_66__1, 0.999f);
                      const float mul_329 = hlo_multiply(mul_325, 0.001f);
                      const float mul_330 = hlo_multiply(mul_329, mul_325);
                      const float add_147 = hlo_add(mul_328, mul_330);
                      add_147_w_0.v[lane] = store_as<float>(add_147);
                      const float flat_6__1 = load_as<float>(flat_6__1_v_0.v[lane]);
                      const float div_129 = hlo_divide_shared(add_146, sub_60__5);
                      const float mul_331 = hlo_multiply(div_129, 0.001f);
                      const float div_131 = hlo_divide_shared(add_147, sub_61__5);
                      const float sqrt_28 = hlo_sqrt(div_131);
                      const float add_148 = hlo_add(sqrt_28, 1e-08f);
                      const float div_132 = hlo_divide(mul_331, add_148);
                      const float sub_80 = hlo_subtract(flat_6__1, div_132);
                      sub_80_w_0.v[lane] = store_as<float>(sub_80);
                    }
                    *reinterpret_cast<Vec<float, 4>*>(p_add_146 + (col)) = add_146_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_add_147 + (col)) = add_147_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_sub_80 + (col)) = sub_80_w_0;
                  }
                }
              }
            }
          }
        }
      } else {
        {  // loop 23: outer 1 / 1 threads, row 1 / 1 threads x 1, col 3x3x4x16 / 512 threads x 1 x 4; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 7;
          if (first >= 0 && first < 1) {
            const float flat_20__1__6 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__6 = hlo_multiply(flat_20__1__6, flat_20__1__6);
            const float reduce_sum_133_reshape_2__6 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__6 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__6 = hlo_multiply(flat_21__1__6, flat_21__1__6);
            const float reduce_sum_133_add_0__6 = hlo_add(reduce_sum_133_reshape_2__6, mul_258__6);
            const float add_107__6 = hlo_add(mul_257__6, reduce_sum_133_add_0__6);
            const float reduce_sum_134__7 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__6 = hlo_add(add_107__6, reduce_sum_134__7);
            const float reduce_sum_135__7 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__6 = hlo_add(add_108__6, reduce_sum_135__7);
            const float reduce_sum_136__7 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__6 = hlo_add(add_109__6, reduce_sum_136__7);
            const float reduce_sum_137__7 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__6 = hlo_add(add_110__6, reduce_sum_137__7);
            const float reduce_sum_138__7 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__6 = hlo_add(add_111__6, reduce_sum_138__7);
            const float reduce_sum_139__7 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__6 = hlo_add(add_112__6, reduce_sum_139__7);
            const float reduce_sum_140__7 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__6 = hlo_add(add_113__6, reduce_sum_140__7);
            const float reduce_sum_141_reshape_2__6 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__6 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__6 = hlo_multiply(flat_29__1__6, flat_29__1__6);
            const float reduce_sum_141_add_0__6 = hlo_add(reduce_sum_141_reshape_2__6, mul_266__6);
            const float add_115__6 = hlo_add(add_114__6, reduce_sum_141_add_0__6);
            const float reduce_sum_142__7 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__6 = hlo_add(add_115__6, reduce_sum_142__7);
            const float reduce_sum_143__7 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__6 = hlo_add(add_116__6, reduce_sum_143__7);
            const float reduce_sum_144__7 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__6 = hlo_add(add_117__6, reduce_sum_144__7);
            const float reduce_sum_145__7 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__6 = hlo_add(add_118__6, reduce_sum_145__7);
            const float reduce_sum_146__7 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__6 = hlo_add(add_119__6, reduce_sum_146__7);
            const float reduce_sum_147__7 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__6 = hlo_add(add_120__6, reduce_sum_147__7);
            const float reduce_sum_148__7 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__6 = hlo_add(add_121__6, reduce_sum_148__7);
            const float reduce_sum_149__7 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__6 = hlo_add(add_122__6, reduce_sum_149__7);
            const float reduce_sum_150__7 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__6 = hlo_add(add_123__6, reduce_sum_150__7);
            const float reduce_sum_151__7 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__6 = hlo_add(add_124__6, reduce_sum_151__7);
            const float sqrt_21__6 = hlo_sqrt(add_125__6);
            const float add_126__6 = hlo_add(sqrt_21__6, 1e-06f);
            const float div_99__6 = hlo_divide(1.0f, add_126__6);
            const float min_1__6 = hlo_minimum(div_99__6, 1.0f);
            const int step_1__6 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__6 = hlo_convert<float, int>(step_1__6);
            const float add_127__6 = hlo_add(convert_element_type_1__6, 1.0f);
            const float pow_40__6 = hlo_power(0.9f, add_127__6);
            const float sub_60__6 = hlo_subtract(1.0f, pow_40__6);
            const float pow_41__6 = hlo_power(0.999f, add_127__6);
            const float sub_61__6 = hlo_subtract(1.0f, pow_41__6);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 2048 + tx * 4;
                  if (col < 576) {
                    const Vec<float, 4> flat_47__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_47__1 + (col));
                    const Vec<float, 4> flat_27__1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_27__1 + (col));
                    Vec<float, 4> add_149_w_0;
                    const Vec<float, 4> flat_67__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_67__1 + (col));
                    Vec<float, 4> add_150_w_0;
                    const Vec<float, 4> flat_7__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_7__1 + (col));
                    Vec<float, 4> sub_83_w_0;
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      const float flat_47__1 = load_as<float>(flat_47__1_v_0.v[lane]);
                      const float mul_334 = hlo_multiply(flat_47__1, 0.9f);
                      const float flat_27__1__1 = load_as<float>(flat_27__1_v_0__1.v[lane]);
                      const float mul_333 = hlo_multiply(flat_27__1__1, min_1__6);
                      const float mul_335 = hlo_multiply(mul_333, 0.1f);
                      const float add_149 = hlo_add(mul_334, mul_335);
                      add_149_w_0.v[lane] = store_as<float>(add_149);
                      const float flat_67__1 = load_as<float>(flat_67__1_v_0.v[lane]);
                      const float mul_336 = hlo_multiply(flat_67__1, 0.999f);
                      const float mul_337 = hlo_multiply(mul_333, 0.001f);
                      const float mul_338 = hlo_multiply(mul_337, mul_333);
                      const float add_150 = hlo_add(mul_336, mul_338);
                      add_150_w_0.v[lane] = store_as<float>(add_150);
                      const float flat_7__1 = load_as<float>(flat_7__1_v_0.v[lane]);
                      const float div_134 = hlo_divide_shared(add_149, sub_60__6);
                      const float mul_339 = hlo_multiply(div_134, 0.001f);
                      const float div_136 = hlo_divide_shared(add_150, sub_61__6);
                      const float sqrt_29 = hlo_sqrt(div_136);
                      const float add_151 = hlo_add(sqrt_29, 1e-08f);
                      const float div_137 = hlo_divide(mul_339, add_151);
                      const float sub_83 = hlo_subtract(flat_7__1, div_137);
                      sub_83_w_0.v[lane] = store_as<float>(sub_83);
                    }
                    *reinterpret_cast<Vec<float, 4>*>(p_add_149 + (col)) = add_149_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_add_150 + (col)) = add_150_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_sub_83 + (col)) = sub_83_w_0;
                  }
                }
              }
            }
          }
        }
        {  // loop 24: outer 1 / 1 threads, row 1 / 1 threads x 1, col 16 / 512 threads x 1 x 4; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 8;
          if (first >= 0 && first < 1) {
            const float flat_20__1__7 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__7 = hlo_multiply(flat_20__1__7, flat_20__1__7);
            const float reduce_sum_133_reshape_2__7 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__7 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__7 = hlo_multiply(flat_21__1__7, flat_21__1__7);
            const float reduce_sum_133_add_0__7 = hlo_add(reduce_sum_133_reshape_2__7, mul_258__7);
            const float add_107__7 = hlo_add(mul_257__7, reduce_sum_133_add_0__7);
            const float reduce_sum_134__8 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__7 = hlo_add(add_107__7, reduce_sum_134__8);
            const float reduce_sum_135__8 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__7 = hlo_add(add_108__7, reduce_sum_135__8);
            const float reduce_sum_136__8 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__7 = hlo_add(add_109__7, reduce_sum_136__8);
            const float reduce_sum_137__8 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__7 = hlo_add(add_110__7, reduce_sum_137__8);
            const float reduce_sum_138__8 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__7 = hlo_add(add_111__7, reduce_sum_138__8);
            const float reduce_sum_139__8 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__7 = hlo_add(add_112__7, reduce_sum_139__8);
            const float reduce_sum_140__8 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__7 = hlo_add(add_113__7, reduce_sum_140__8);
            const float reduce_sum_141_reshape_2__7 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__7 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__7 = hlo_multiply(flat_29__1__7, flat_29__1__7);
            const float reduce_sum_141_add_0__7 = hlo_add(reduce_sum_141_reshape_2__7, mul_266__7);
            const float add_115__7 = hlo_add(add_114__7, reduce_sum_141_add_0__7);
            const float reduce_sum_142__8 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__7 = hlo_add(add_115__7, reduce_sum_142__8);
            const float reduce_sum_143__8 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__7 = hlo_add(add_116__7, reduce_sum_143__8);
            const float reduce_sum_144__8 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__7 = hlo_add(add_117__7, reduce_sum_144__8);
            const float reduce_sum_145__8 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__7 = hlo_add(add_118__7, reduce_sum_145__8);
            const float reduce_sum_146__8 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__7 = hlo_add(add_119__7, reduce_sum_146__8);
            const float reduce_sum_147__8 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__7 = hlo_add(add_120__7, reduce_sum_147__8);
            const float reduce_sum_148__8 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__7 = hlo_add(add_121__7, reduce_sum_148__8);
            const float reduce_sum_149__8 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__7 = hlo_add(add_122__7, reduce_sum_149__8);
            const float reduce_sum_150__8 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__7 = hlo_add(add_123__7, reduce_sum_150__8);
            const float reduce_sum_151__8 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__7 = hlo_add(add_124__7, reduce_sum_151__8);
            const float sqrt_21__7 = hlo_sqrt(add_125__7);
            const float add_126__7 = hlo_add(sqrt_21__7, 1e-06f);
            const float div_99__7 = hlo_divide(1.0f, add_126__7);
            const float min_1__7 = hlo_minimum(div_99__7, 1.0f);
            const int step_1__7 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__7 = hlo_convert<float, int>(step_1__7);
            const float add_127__7 = hlo_add(convert_element_type_1__7, 1.0f);
            const float pow_40__7 = hlo_power(0.9f, add_127__7);
            const float sub_60__7 = hlo_subtract(1.0f, pow_40__7);
            const float pow_41__7 = hlo_power(0.999f, add_127__7);
            const float sub_61__7 = hlo_subtract(1.0f, pow_41__7);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 2048 + tx * 4;
                  if (col < 16) {
                    const Vec<float, 4> flat_48__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_48__1 + (col));
                    const Vec<float, 4> flat_28__1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_28__1 + (col));
                    Vec<float, 4> add_152_w_0;
                    const Vec<float, 4> flat_68__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_68__1 + (col));
                    Vec<float, 4> add_153_w_0;
                    const Vec<float, 4> flat_8__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_8__1 + (col));
                    Vec<float, 4> sub_86_w_0;
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      const float flat_48__1 = load_as<float>(flat_48__1_v_0.v[lane]);
                      const float mul_342 = hlo_multiply(flat_48__1, 0.9f);
                      const float flat_28__1__1 = load_as<float>(flat_28__1_v_0__1.v[lane]);
                      const float mul_341 = hlo_multiply(flat_28__1__1, min_1__7);
                      const float mul_343 = hlo_multiply(mul_341, 0.1f);
                      const float add_152 = hlo_add(mul_342, mul_343);
                      add_152_w_0.v[lane] = store_as<float>(add_152);
                      const float flat_68__1 = load_as<float>(flat_68__1_v_0.v[lane]);
                      const float mul_344 = hlo_multiply(flat_68__1, 0.999f);
                      const float mul_345 = hlo_multiply(mul_341, 0.001f);
                      const float mul_346 = hlo_multiply(mul_345, mul_341);
                      const float add_153 = hlo_add(mul_344, mul_346);
                      add_153_w_0.v[lane] = store_as<float>(add_153);
                      const float flat_8__1 = load_as<float>(flat_8__1_v_0.v[lane]);
                      const float div_139 = hlo_divide_shared(add_152, sub_60__7);
                      const float mul_347 = hlo_multiply(div_139, 0.001f);
                      const float div_141 = hlo_divide_shared(add_153, sub_61__7);
                      const float sqrt_30 = hlo_sqrt(div_141);
                      const float add_154 = hlo_add(sqrt_30, 1e-08f);
                      const float div_142 = hlo_divide(mul_347, add_154);
                      const float sub_86 = hlo_subtract(flat_8__1, div_142);
                      sub_86_w_0.v[lane] = store_as<float>(sub_86);
                    }
                    *reinterpret_cast<Vec<float, 4>*>(p_add_152 + (col)) = add_152_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_add_153 + (col)) = add_153_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_sub_86 + (col)) = sub_86_w_0;
                  }
                }
              }
            }
          }
        }
      }
    }
  } else {
    if (blockIdx.x < 13) {
      if (blockIdx.x < 11) {
        {  // loop 25: outer 1 / 1 threads, row 1 / 1 threads x 1, col 33 / 512 threads x 1 x 1; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 9;
          if (first >= 0 && first < 1) {
            const float flat_20__1__8 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__8 = hlo_multiply(flat_20__1__8, flat_20__1__8);
            const float reduce_sum_133_reshape_2__8 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__8 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__8 = hlo_multiply(flat_21__1__8, flat_21__1__8);
            const float reduce_sum_133_add_0__8 = hlo_add(reduce_sum_133_reshape_2__8, mul_258__8);
            const float add_107__8 = hlo_add(mul_257__8, reduce_sum_133_add_0__8);
            const float reduce_sum_134__9 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__8 = hlo_add(add_107__8, reduce_sum_134__9);
            const float reduce_sum_135__9 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__8 = hlo_add(add_108__8, reduce_sum_135__9);
            const float reduce_sum_136__9 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__8 = hlo_add(add_109__8, reduce_sum_136__9);
            const float reduce_sum_137__9 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__8 = hlo_add(add_110__8, reduce_sum_137__9);
            const float reduce_sum_138__9 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__8 = hlo_add(add_111__8, reduce_sum_138__9);
            const float reduce_sum_139__9 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__8 = hlo_add(add_112__8, reduce_sum_139__9);
            const float reduce_sum_140__9 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__8 = hlo_add(add_113__8, reduce_sum_140__9);
            const float reduce_sum_141_reshape_2__8 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__8 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__8 = hlo_multiply(flat_29__1__8, flat_29__1__8);
            const float reduce_sum_141_add_0__8 = hlo_add(reduce_sum_141_reshape_2__8, mul_266__8);
            const float add_115__8 = hlo_add(add_114__8, reduce_sum_141_add_0__8);
            const float reduce_sum_142__9 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__8 = hlo_add(add_115__8, reduce_sum_142__9);
            const float reduce_sum_143__9 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__8 = hlo_add(add_116__8, reduce_sum_143__9);
            const float reduce_sum_144__9 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__8 = hlo_add(add_117__8, reduce_sum_144__9);
            const float reduce_sum_145__9 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__8 = hlo_add(add_118__8, reduce_sum_145__9);
            const float reduce_sum_146__9 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__8 = hlo_add(add_119__8, reduce_sum_146__9);
            const float reduce_sum_147__9 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__8 = hlo_add(add_120__8, reduce_sum_147__9);
            const float reduce_sum_148__9 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__8 = hlo_add(add_121__8, reduce_sum_148__9);
            const float reduce_sum_149__9 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__8 = hlo_add(add_122__8, reduce_sum_149__9);
            const float reduce_sum_150__9 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__8 = hlo_add(add_123__8, reduce_sum_150__9);
            const float reduce_sum_151__9 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__8 = hlo_add(add_124__8, reduce_sum_151__9);
            const float sqrt_21__8 = hlo_sqrt(add_125__8);
            const float add_126__8 = hlo_add(sqrt_21__8, 1e-06f);
            const float div_99__8 = hlo_divide(1.0f, add_126__8);
            const float min_1__8 = hlo_minimum(div_99__8, 1.0f);
            const int step_1__8 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__8 = hlo_convert<float, int>(step_1__8);
            const float add_127__8 = hlo_add(convert_element_type_1__8, 1.0f);
            const float pow_40__8 = hlo_power(0.9f, add_127__8);
            const float sub_60__8 = hlo_subtract(1.0f, pow_40__8);
            const float pow_41__8 = hlo_power(0.999f, add_127__8);
            const float sub_61__8 = hlo_subtract(1.0f, pow_41__8);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 512 + tx;
                  if (col < 33) {
                    const float flat_51__1 = load_as<float>(p_flat_51__1[col]);
                    const float mul_366 = hlo_multiply(flat_51__1, 0.9f);
                    const float flat_31__1__1 = load_as<float>(p_flat_31__1[col]);
                    const float mul_365 = hlo_multiply(flat_31__1__1, min_1__8);
                    const float mul_367 = hlo_multiply(mul_365, 0.1f);
                    const float add_161 = hlo_add(mul_366, mul_367);
                    p_add_161[col] = store_as<float>(add_161);
                    const float flat_71__1 = load_as<float>(p_flat_71__1[col]);
                    const float mul_368 = hlo_multiply(flat_71__1, 0.999f);
                    const float mul_369 = hlo_multiply(mul_365, 0.001f);
                    const float mul_370 = hlo_multiply(mul_369, mul_365);
                    const float add_162 = hlo_add(mul_368, mul_370);
                    p_add_162[col] = store_as<float>(add_162);
                    const float flat_11__1 = load_as<float>(p_flat_11__1[col]);
                    const float div_154 = hlo_divide_shared(add_161, sub_60__8);
                    const float mul_371 = hlo_multiply(div_154, 0.001f);
                    const float div_156 = hlo_divide_shared(add_162, sub_61__8);
                    const float sqrt_33 = hlo_sqrt(div_156);
                    const float add_163 = hlo_add(sqrt_33, 1e-08f);
                    const float div_157 = hlo_divide(mul_371, add_163);
                    const float sub_95 = hlo_subtract(flat_11__1, div_157);
                    p_sub_95[col] = store_as<float>(sub_95);
                  }
                }
              }
            }
          }
        }
        {  // loop 26: outer 1 / 1 threads, row 1 / 1 threads x 1, col 5x5x8 / 512 threads x 1 x 4; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 10;
          if (first >= 0 && first < 1) {
            const float flat_20__1__9 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__9 = hlo_multiply(flat_20__1__9, flat_20__1__9);
            const float reduce_sum_133_reshape_2__9 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__9 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__9 = hlo_multiply(flat_21__1__9, flat_21__1__9);
            const float reduce_sum_133_add_0__9 = hlo_add(reduce_sum_133_reshape_2__9, mul_258__9);
            const float add_107__9 = hlo_add(mul_257__9, reduce_sum_133_add_0__9);
            const float reduce_sum_134__10 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__9 = hlo_add(add_107__9, reduce_sum_134__10);
            const float reduce_sum_135__10 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__9 = hlo_add(add_108__9, reduce_sum_135__10);
            const float reduce_sum_136__10 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__9 = hlo_add(add_109__9, reduce_sum_136__10);
            const float reduce_sum_137__10 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__9 = hlo_add(add_110__9, reduce_sum_137__10);
            const float reduce_sum_138__10 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__9 = hlo_add(add_111__9, reduce_sum_138__10);
            const float reduce_sum_139__10 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__9 = hlo_add(add_112__9, reduce_sum_139__10);
            const float reduce_sum_140__10 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__9 = hlo_add(add_113__9, reduce_sum_140__10);
            const float reduce_sum_141_reshape_2__9 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__9 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__9 = hlo_multiply(flat_29__1__9, flat_29__1__9);
            const float reduce_sum_141_add_0__9 = hlo_add(reduce_sum_141_reshape_2__9, mul_266__9);
            const float add_115__9 = hlo_add(add_114__9, reduce_sum_141_add_0__9);
            const float reduce_sum_142__10 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__9 = hlo_add(add_115__9, reduce_sum_142__10);
            const float reduce_sum_143__10 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__9 = hlo_add(add_116__9, reduce_sum_143__10);
            const float reduce_sum_144__10 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__9 = hlo_add(add_117__9, reduce_sum_144__10);
            const float reduce_sum_145__10 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__9 = hlo_add(add_118__9, reduce_sum_145__10);
            const float reduce_sum_146__10 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__9 = hlo_add(add_119__9, reduce_sum_146__10);
            const float reduce_sum_147__10 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__9 = hlo_add(add_120__9, reduce_sum_147__10);
            const float reduce_sum_148__10 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__9 = hlo_add(add_121__9, reduce_sum_148__10);
            const float reduce_sum_149__10 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__9 = hlo_add(add_122__9, reduce_sum_149__10);
            const float reduce_sum_150__10 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__9 = hlo_add(add_123__9, reduce_sum_150__10);
            const float reduce_sum_151__10 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__9 = hlo_add(add_124__9, reduce_sum_151__10);
            const float sqrt_21__9 = hlo_sqrt(add_125__9);
            const float add_126__9 = hlo_add(sqrt_21__9, 1e-06f);
            const float div_99__9 = hlo_divide(1.0f, add_126__9);
            const float min_1__9 = hlo_minimum(div_99__9, 1.0f);
            const int step_1__9 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__9 = hlo_convert<float, int>(step_1__9);
            const float add_127__9 = hlo_add(convert_element_type_1__9, 1.0f);
            const float pow_40__9 = hlo_power(0.9f, add_127__9);
            const float sub_60__9 = hlo_subtract(1.0f, pow_40__9);
            const float pow_41__9 = hlo_power(0.999f, add_127__9);
            const float sub_61__9 = hlo_subtract(1.0f, pow_41__9);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 2048 + tx * 4;
                  if (col < 200) {
                    const Vec<float, 4> flat_52__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_52__1 + (col));
                    const Vec<float, 4> flat_32__1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_32__1 + (col));
                    Vec<float, 4> add_164_w_0;
                    const Vec<float, 4> flat_72__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_72__1 + (col));
                    Vec<float, 4> add_165_w_0;
                    const Vec<float, 4> flat_12__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_12__1 + (col));
                    Vec<float, 4> sub_98_w_0;
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      const float flat_52__1 = load_as<float>(flat_52__1_v_0.v[lane]);
                      const float mul_374 = hlo_multiply(flat_52__1, 0.9f);
                      const float flat_32__1__1 = load_as<float>(flat_32__1_v_0__1.v[lane]);
                      const float mul_373 = hlo_multiply(flat_32__1__1, min_1__9);
                      const float mul_375 = hlo_multiply(mul_373, 0.1f);
                      const float add_164 = hlo_add(mul_374, mul_375);
                      add_164_w_0.v[lane] = store_as<float>(add_164);
                      const float flat_72__1 = load_as<float>(flat_72__1_v_0.v[lane]);
                      const float mul_376 = hlo_multiply(flat_72__1, 0.999f);
                      const float mul_377 = hlo_multiply(mul_373, 0.001f);
                      const float mul_378 = hlo_multiply(mul_377, mul_373);
                      const float add_165 = hlo_add(mul_376, mul_378);
                      add_165_w_0.v[lane] = store_as<float>(add_165);
                      const float flat_12__1 = load_as<float>(flat_12__1_v_0.v[lane]);
                      const float div_159 = hlo_divide_shared(add_164, sub_60__9);
                      const float mul_379 = hlo_multiply(div_159, 0.001f);
                      const float div_161 = hlo_divide_shared(add_165, sub_61__9);
                      const float sqrt_34 = hlo_sqrt(div_161);
                      const float add_166 = hlo_add(sqrt_34, 1e-08f);
                      const float div_162 = hlo_divide(mul_379, add_166);
                      const float sub_98 = hlo_subtract(flat_12__1, div_162);
                      sub_98_w_0.v[lane] = store_as<float>(sub_98);
                    }
                    *reinterpret_cast<Vec<float, 4>*>(p_add_164 + (col)) = add_164_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_add_165 + (col)) = add_165_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_sub_98 + (col)) = sub_98_w_0;
                  }
                }
              }
            }
          }
        }
      } else {
        {  // loop 27: outer 1 / 1 threads, row 1 / 1 threads x 1, col 8 / 512 threads x 1 x 4; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 11;
          if (first >= 0 && first < 1) {
            const float flat_20__1__10 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__10 = hlo_multiply(flat_20__1__10, flat_20__1__10);
            const float reduce_sum_133_reshape_2__10 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__10 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__10 = hlo_multiply(flat_21__1__10, flat_21__1__10);
            const float reduce_sum_133_add_0__10 = hlo_add(reduce_sum_133_reshape_2__10, mul_258__10);
            const float add_107__10 = hlo_add(mul_257__10, reduce_sum_133_add_0__10);
            const float reduce_sum_134__11 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__10 = hlo_add(add_107__10, reduce_sum_134__11);
            const float reduce_sum_135__11 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__10 = hlo_add(add_108__10, reduce_sum_135__11);
            const float reduce_sum_136__11 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__10 = hlo_add(add_109__10, reduce_sum_136__11);
            const float reduce_sum_137__11 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__10 = hlo_add(add_110__10, reduce_sum_137__11);
            const float reduce_sum_138__11 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__10 = hlo_add(add_111__10, reduce_sum_138__11);
            const float reduce_sum_139__11 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__10 = hlo_add(add_112__10, reduce_sum_139__11);
            const float reduce_sum_140__11 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__10 = hlo_add(add_113__10, reduce_sum_140__11);
            const float reduce_sum_141_reshape_2__10 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__10 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__10 = hlo_multiply(flat_29__1__10, flat_29__1__10);
            const float reduce_sum_141_add_0__10 = hlo_add(reduce_sum_141_reshape_2__10, mul_266__10);
            const float add_115__10 = hlo_add(add_114__10, reduce_sum_141_add_0__10);
            const float reduce_sum_142__11 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__10 = hlo_add(add_115__10, reduce_sum_142__11);
            const float reduce_sum_143__11 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__10 = hlo_add(add_116__10, reduce_sum_143__11);
            const float reduce_sum_144__11 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__10 = hlo_add(add_117__10, reduce_sum_144__11);
            const float reduce_sum_145__11 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__10 = hlo_add(add_118__10, reduce_sum_145__11);
            const float reduce_sum_146__11 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__10 = hlo_add(add_119__10, reduce_sum_146__11);
            const float reduce_sum_147__11 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__10 = hlo_add(add_120__10, reduce_sum_147__11);
            const float reduce_sum_148__11 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__10 = hlo_add(add_121__10, reduce_sum_148__11);
            const float reduce_sum_149__11 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__10 = hlo_add(add_122__10, reduce_sum_149__11);
            const float reduce_sum_150__11 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__10 = hlo_add(add_123__10, reduce_sum_150__11);
            const float reduce_sum_151__11 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__10 = hlo_add(add_124__10, reduce_sum_151__11);
            const float sqrt_21__10 = hlo_sqrt(add_125__10);
            const float add_126__10 = hlo_add(sqrt_21__10, 1e-06f);
            const float div_99__10 = hlo_divide(1.0f, add_126__10);
            const float min_1__10 = hlo_minimum(div_99__10, 1.0f);
            const int step_1__10 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__10 = hlo_convert<float, int>(step_1__10);
            const float add_127__10 = hlo_add(convert_element_type_1__10, 1.0f);
            const float pow_40__10 = hlo_power(0.9f, add_127__10);
            const float sub_60__10 = hlo_subtract(1.0f, pow_40__10);
            const float pow_41__10 = hlo_power(0.999f, add_127__10);
            const float sub_61__10 = hlo_subtract(1.0f, pow_41__10);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 2048 + tx * 4;
                  if (col < 8) {
                    const Vec<float, 4> flat_53__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_53__1 + (col));
                    const Vec<float, 4> flat_33__1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_33__1 + (col));
                    Vec<float, 4> add_167_w_0;
                    const Vec<float, 4> flat_73__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_73__1 + (col));
                    Vec<float, 4> add_168_w_0;
                    const Vec<float, 4> flat_13__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_13__1 + (col));
                    Vec<float, 4> sub_101_w_0;
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      const float flat_53__1 = load_as<float>(flat_53__1_v_0.v[lane]);
                      const float mul_382 = hlo_multiply(flat_53__1, 0.9f);
                      const float flat_33__1__1 = load_as<float>(flat_33__1_v_0__1.v[lane]);
                      const float mul_381 = hlo_multiply(flat_33__1__1, min_1__10);
                      const float mul_383 = hlo_multiply(mul_381, 0.1f);
                      const float add_167 = hlo_add(mul_382, mul_383);
                      add_167_w_0.v[lane] = store_as<float>(add_167);
                      const float flat_73__1 = load_as<float>(flat_73__1_v_0.v[lane]);
                      const float mul_384 = hlo_multiply(flat_73__1, 0.999f);
                      const float mul_385 = hlo_multiply(mul_381, 0.001f);
                      const float mul_386 = hlo_multiply(mul_385, mul_381);
                      const float add_168 = hlo_add(mul_384, mul_386);
                      add_168_w_0.v[lane] = store_as<float>(add_168);
                      const float flat_13__1 = load_as<float>(flat_13__1_v_0.v[lane]);
                      const float div_164 = hlo_divide_shared(add_167, sub_60__10);
                      const float mul_387 = hlo_multiply(div_164, 0.001f);
                      const float div_166 = hlo_divide_shared(add_168, sub_61__10);
                      const float sqrt_35 = hlo_sqrt(div_166);
                      const float add_169 = hlo_add(sqrt_35, 1e-08f);
                      const float div_167 = hlo_divide(mul_387, add_169);
                      const float sub_101 = hlo_subtract(flat_13__1, div_167);
                      sub_101_w_0.v[lane] = store_as<float>(sub_101);
                    }
                    *reinterpret_cast<Vec<float, 4>*>(p_add_167 + (col)) = add_167_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_add_168 + (col)) = add_168_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_sub_101 + (col)) = sub_101_w_0;
                  }
                }
              }
            }
          }
        }
        {  // loop 28: outer 1 / 1 threads, row 1 / 1 threads x 1, col 100x20 / 512 threads x 1 x 4; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 12;
          if (first >= 0 && first < 1) {
            const float flat_20__1__11 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__11 = hlo_multiply(flat_20__1__11, flat_20__1__11);
            const float reduce_sum_133_reshape_2__11 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__11 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__11 = hlo_multiply(flat_21__1__11, flat_21__1__11);
            const float reduce_sum_133_add_0__11 = hlo_add(reduce_sum_133_reshape_2__11, mul_258__11);
            const float add_107__11 = hlo_add(mul_257__11, reduce_sum_133_add_0__11);
            const float reduce_sum_134__12 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__11 = hlo_add(add_107__11, reduce_sum_134__12);
            const float reduce_sum_135__12 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__11 = hlo_add(add_108__11, reduce_sum_135__12);
            const float reduce_sum_136__12 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__11 = hlo_add(add_109__11, reduce_sum_136__12);
            const float reduce_sum_137__12 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__11 = hlo_add(add_110__11, reduce_sum_137__12);
            const float reduce_sum_138__12 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__11 = hlo_add(add_111__11, reduce_sum_138__12);
            const float reduce_sum_139__12 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__11 = hlo_add(add_112__11, reduce_sum_139__12);
            const float reduce_sum_140__12 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__11 = hlo_add(add_113__11, reduce_sum_140__12);
            const float reduce_sum_141_reshape_2__11 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__11 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__11 = hlo_multiply(flat_29__1__11, flat_29__1__11);
            const float reduce_sum_141_add_0__11 = hlo_add(reduce_sum_141_reshape_2__11, mul_266__11);
            const float add_115__11 = hlo_add(add_114__11, reduce_sum_141_add_0__11);
            const float reduce_sum_142__12 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__11 = hlo_add(add_115__11, reduce_sum_142__12);
            const float reduce_sum_143__12 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__11 = hlo_add(add_116__11, reduce_sum_143__12);
            const float reduce_sum_144__12 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__11 = hlo_add(add_117__11, reduce_sum_144__12);
            const float reduce_sum_145__12 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__11 = hlo_add(add_118__11, reduce_sum_145__12);
            const float reduce_sum_146__12 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__11 = hlo_add(add_119__11, reduce_sum_146__12);
            const float reduce_sum_147__12 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__11 = hlo_add(add_120__11, reduce_sum_147__12);
            const float reduce_sum_148__12 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__11 = hlo_add(add_121__11, reduce_sum_148__12);
            const float reduce_sum_149__12 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__11 = hlo_add(add_122__11, reduce_sum_149__12);
            const float reduce_sum_150__12 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__11 = hlo_add(add_123__11, reduce_sum_150__12);
            const float reduce_sum_151__12 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__11 = hlo_add(add_124__11, reduce_sum_151__12);
            const float sqrt_21__11 = hlo_sqrt(add_125__11);
            const float add_126__11 = hlo_add(sqrt_21__11, 1e-06f);
            const float div_99__11 = hlo_divide(1.0f, add_126__11);
            const float min_1__11 = hlo_minimum(div_99__11, 1.0f);
            const int step_1__11 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__11 = hlo_convert<float, int>(step_1__11);
            const float add_127__11 = hlo_add(convert_element_type_1__11, 1.0f);
            const float pow_40__11 = hlo_power(0.9f, add_127__11);
            const float sub_60__11 = hlo_subtract(1.0f, pow_40__11);
            const float pow_41__11 = hlo_power(0.999f, add_127__11);
            const float sub_61__11 = hlo_subtract(1.0f, pow_41__11);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 2048 + tx * 4;
                  if (col < 2000) {
                    const Vec<float, 4> flat_54__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_54__1 + (col));
                    const Vec<float, 4> flat_34__1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_34__1 + (col));
                    Vec<float, 4> add_170_w_0;
                    const Vec<float, 4> flat_74__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_74__1 + (col));
                    Vec<float, 4> add_171_w_0;
                    const Vec<float, 4> flat_14__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_14__1 + (col));
                    Vec<float, 4> sub_104_w_0;
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      const float flat_54__1 = load_as<float>(flat_54__1_v_0.v[lane]);
                      const float mul_390 = hlo_multiply(flat_54__1, 0.9f);
                      const float flat_34__1__1 = load_as<float>(flat_34__1_v_0__1.v[lane]);
                      const float mul_389 = hlo_multiply(flat_34__1__1, min_1__11);
                      const float mul_391 = hlo_multiply(mul_389, 0.1f);
                      const float add_170 = hlo_add(mul_390, mul_391);
                      add_170_w_0.v[lane] = store_as<float>(add_170);
                      const float flat_74__1 = load_as<float>(flat_74__1_v_0.v[lane]);
                      const float mul_392 = hlo_multiply(flat_74__1, 0.999f);
                      const float mul_393 = hlo_multiply(mul_389, 0.001f);
                      const float mul_394 = hlo_multiply(mul_393, mul_389);
                      const float add_171 = hlo_add(mul_392, mul_394);
                      add_171_w_0.v[lane] = store_as<float>(add_171);
                      const float flat_14__1 = load_as<float>(flat_14__1_v_0.v[lane]);
                      const float div_169 = hlo_divide_shared(add_170, sub_60__11);
                      const float mul_395 = hlo_multiply(div_169, 0.001f);
                      const float div_171 = hlo_divide_shared(add_171, sub_61__11);
                      const float sqrt_36 = hlo_sqrt(div_171);
                      const float add_172 = hlo_add(sqrt_36, 1e-08f);
                      const float div_172 = hlo_divide(mul_395, add_172);
                      const float sub_104 = hlo_subtract(flat_14__1, div_172);
                      sub_104_w_0.v[lane] = store_as<float>(sub_104);
                    }
                    *reinterpret_cast<Vec<float, 4>*>(p_add_170 + (col)) = add_170_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_add_171 + (col)) = add_171_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_sub_104 + (col)) = sub_104_w_0;
                  }
                }
              }
            }
          }
        }
      }
    } else {
      if (blockIdx.x < 15) {
        {  // loop 29: outer 1 / 1 threads, row 1 / 1 threads x 1, col 20 / 512 threads x 1 x 4; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 13;
          if (first >= 0 && first < 1) {
            const float flat_20__1__12 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__12 = hlo_multiply(flat_20__1__12, flat_20__1__12);
            const float reduce_sum_133_reshape_2__12 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__12 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__12 = hlo_multiply(flat_21__1__12, flat_21__1__12);
            const float reduce_sum_133_add_0__12 = hlo_add(reduce_sum_133_reshape_2__12, mul_258__12);
            const float add_107__12 = hlo_add(mul_257__12, reduce_sum_133_add_0__12);
            const float reduce_sum_134__13 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__12 = hlo_add(add_107__12, reduce_sum_134__13);
            const float reduce_sum_135__13 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__12 = hlo_add(add_108__12, reduce_sum_135__13);
            const float reduce_sum_136__13 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__12 = hlo_add(add_109__12, reduce_sum_136__13);
            const float reduce_sum_137__13 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__12 = hlo_add(add_110__12, reduce_sum_137__13);
            const float reduce_sum_138__13 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__12 = hlo_add(add_111__12, reduce_sum_138__13);
            const float reduce_sum_139__13 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__12 = hlo_add(add_112__12, reduce_sum_139__13);
            const float reduce_sum_140__13 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__12 = hlo_add(add_113__12, reduce_sum_140__13);
            const float reduce_sum_141_reshape_2__12 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__12 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__12 = hlo_multiply(flat_29__1__12, flat_29__1__12);
            const float reduce_sum_141_add_0__12 = hlo_add(reduce_sum_141_reshape_2__12, mul_266__12);
            const float add_115__12 = hlo_add(add_114__12, reduce_sum_141_add_0__12);
            const float reduce_sum_142__13 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__12 = hlo_add(add_115__12, reduce_sum_142__13);
            const float reduce_sum_143__13 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__12 = hlo_add(add_116__12, reduce_sum_143__13);
            const float reduce_sum_144__13 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__12 = hlo_add(add_117__12, reduce_sum_144__13);
            const float reduce_sum_145__13 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__12 = hlo_add(add_118__12, reduce_sum_145__13);
            const float reduce_sum_146__13 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__12 = hlo_add(add_119__12, reduce_sum_146__13);
            const float reduce_sum_147__13 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__12 = hlo_add(add_120__12, reduce_sum_147__13);
            const float reduce_sum_148__13 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__12 = hlo_add(add_121__12, reduce_sum_148__13);
            const float reduce_sum_149__13 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__12 = hlo_add(add_122__12, reduce_sum_149__13);
            const float reduce_sum_150__13 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__12 = hlo_add(add_123__12, reduce_sum_150__13);
            const float reduce_sum_151__13 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__12 = hlo_add(add_124__12, reduce_sum_151__13);
            const float sqrt_21__12 = hlo_sqrt(add_125__12);
            const float add_126__12 = hlo_add(sqrt_21__12, 1e-06f);
            const float div_99__12 = hlo_divide(1.0f, add_126__12);
            const float min_1__12 = hlo_minimum(div_99__12, 1.0f);
            const int step_1__12 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__12 = hlo_convert<float, int>(step_1__12);
            const float add_127__12 = hlo_add(convert_element_type_1__12, 1.0f);
            const float pow_40__12 = hlo_power(0.9f, add_127__12);
            const float sub_60__12 = hlo_subtract(1.0f, pow_40__12);
            const float pow_41__12 = hlo_power(0.999f, add_127__12);
            const float sub_61__12 = hlo_subtract(1.0f, pow_41__12);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 2048 + tx * 4;
                  if (col < 20) {
                    const Vec<float, 4> flat_55__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_55__1 + (col));
                    const Vec<float, 4> flat_35__1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_35__1 + (col));
                    Vec<float, 4> add_173_w_0;
                    const Vec<float, 4> flat_75__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_75__1 + (col));
                    Vec<float, 4> add_174_w_0;
                    const Vec<float, 4> flat_15__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_15__1 + (col));
                    Vec<float, 4> sub_107_w_0;
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      const float flat_55__1 = load_as<float>(flat_55__1_v_0.v[lane]);
                      const float mul_398 = hlo_multiply(flat_55__1, 0.9f);
                      const float flat_35__1__1 = load_as<float>(flat_35__1_v_0__1.v[lane]);
                      const float mul_397 = hlo_multiply(flat_35__1__1, min_1__12);
                      const float mul_399 = hlo_multiply(mul_397, 0.1f);
                      const float add_173 = hlo_add(mul_398, mul_399);
                      add_173_w_0.v[lane] = store_as<float>(add_173);
                      const float flat_75__1 = load_as<float>(flat_75__1_v_0.v[lane]);
                      const float mul_400 = hlo_multiply(flat_75__1, 0.999f);
                      const float mul_401 = hlo_multiply(mul_397, 0.001f);
                      const float mul_402 = hlo_multiply(mul_401, mul_397);
                      const float add_174 = hlo_add(mul_400, mul_402);
                      add_174_w_0.v[lane] = store_as<float>(add_174);
                      const float flat_15__1 = load_as<float>(flat_15__1_v_0.v[lane]);
                      const float div_174 = hlo_divide_shared(add_173, sub_60__12);
                      const float mul_403 = hlo_multiply(div_174, 0.001f);
                      const float div_176 = hlo_divide_shared(add_174, sub_61__12);
                      const float sqrt_37 = hlo_sqrt(div_176);
                      const float add_175 = hlo_add(sqrt_37, 1e-08f);
                      const float div_177 = hlo_divide(mul_403, add_175);
                      const float sub_107 = hlo_subtract(flat_15__1, div_177);
                      sub_107_w_0.v[lane] = store_as<float>(sub_107);
                    }
                    *reinterpret_cast<Vec<float, 4>*>(p_add_173 + (col)) = add_173_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_add_174 + (col)) = add_174_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_sub_107 + (col)) = sub_107_w_0;
                  }
                }
              }
            }
          }
        }
        {  // loop 30: outer 1 / 1 threads, row 1 / 1 threads x 1, col 2x2x2x2x2 / 512 threads x 1 x 4; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 14;
          if (first >= 0 && first < 1) {
            const float flat_20__1__13 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__13 = hlo_multiply(flat_20__1__13, flat_20__1__13);
            const float reduce_sum_133_reshape_2__13 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__13 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__13 = hlo_multiply(flat_21__1__13, flat_21__1__13);
            const float reduce_sum_133_add_0__13 = hlo_add(reduce_sum_133_reshape_2__13, mul_258__13);
            const float add_107__13 = hlo_add(mul_257__13, reduce_sum_133_add_0__13);
            const float reduce_sum_134__14 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__13 = hlo_add(add_107__13, reduce_sum_134__14);
            const float reduce_sum_135__14 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__13 = hlo_add(add_108__13, reduce_sum_135__14);
            const float reduce_sum_136__14 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__13 = hlo_add(add_109__13, reduce_sum_136__14);
            const float reduce_sum_137__14 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__13 = hlo_add(add_110__13, reduce_sum_137__14);
            const float reduce_sum_138__14 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__13 = hlo_add(add_111__13, reduce_sum_138__14);
            const float reduce_sum_139__14 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__13 = hlo_add(add_112__13, reduce_sum_139__14);
            const float reduce_sum_140__14 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__13 = hlo_add(add_113__13, reduce_sum_140__14);
            const float reduce_sum_141_reshape_2__13 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__13 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__13 = hlo_multiply(flat_29__1__13, flat_29__1__13);
            const float reduce_sum_141_add_0__13 = hlo_add(reduce_sum_141_reshape_2__13, mul_266__13);
            const float add_115__13 = hlo_add(add_114__13, reduce_sum_141_add_0__13);
            const float reduce_sum_142__14 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__13 = hlo_add(add_115__13, reduce_sum_142__14);
            const float reduce_sum_143__14 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__13 = hlo_add(add_116__13, reduce_sum_143__14);
            const float reduce_sum_144__14 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__13 = hlo_add(add_117__13, reduce_sum_144__14);
            const float reduce_sum_145__14 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__13 = hlo_add(add_118__13, reduce_sum_145__14);
            const float reduce_sum_146__14 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__13 = hlo_add(add_119__13, reduce_sum_146__14);
            const float reduce_sum_147__14 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__13 = hlo_add(add_120__13, reduce_sum_147__14);
            const float reduce_sum_148__14 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__13 = hlo_add(add_121__13, reduce_sum_148__14);
            const float reduce_sum_149__14 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__13 = hlo_add(add_122__13, reduce_sum_149__14);
            const float reduce_sum_150__14 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__13 = hlo_add(add_123__13, reduce_sum_150__14);
            const float reduce_sum_151__14 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__13 = hlo_add(add_124__13, reduce_sum_151__14);
            const float sqrt_21__13 = hlo_sqrt(add_125__13);
            const float add_126__13 = hlo_add(sqrt_21__13, 1e-06f);
            const float div_99__13 = hlo_divide(1.0f, add_126__13);
            const float min_1__13 = hlo_minimum(div_99__13, 1.0f);
            const int step_1__13 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__13 = hlo_convert<float, int>(step_1__13);
            const float add_127__13 = hlo_add(convert_element_type_1__13, 1.0f);
            const float pow_40__13 = hlo_power(0.9f, add_127__13);
            const float sub_60__13 = hlo_subtract(1.0f, pow_40__13);
            const float pow_41__13 = hlo_power(0.999f, add_127__13);
            const float sub_61__13 = hlo_subtract(1.0f, pow_41__13);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 2048 + tx * 4;
                  if (col < 32) {
                    const Vec<float, 4> flat_56__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_56__1 + (col));
                    const Vec<float, 4> flat_36__1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_36__1 + (col));
                    Vec<float, 4> add_176_w_0;
                    const Vec<float, 4> flat_76__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_76__1 + (col));
                    Vec<float, 4> add_177_w_0;
                    const Vec<float, 4> flat_16__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_16__1 + (col));
                    Vec<float, 4> sub_110_w_0;
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      const float flat_56__1 = load_as<float>(flat_56__1_v_0.v[lane]);
                      const float mul_406 = hlo_multiply(flat_56__1, 0.9f);
                      const float flat_36__1__1 = load_as<float>(flat_36__1_v_0__1.v[lane]);
                      const float mul_405 = hlo_multiply(flat_36__1__1, min_1__13);
                      const float mul_407 = hlo_multiply(mul_405, 0.1f);
                      const float add_176 = hlo_add(mul_406, mul_407);
                      add_176_w_0.v[lane] = store_as<float>(add_176);
                      const float flat_76__1 = load_as<float>(flat_76__1_v_0.v[lane]);
                      const float mul_408 = hlo_multiply(flat_76__1, 0.999f);
                      const float mul_409 = hlo_multiply(mul_405, 0.001f);
                      const float mul_410 = hlo_multiply(mul_409, mul_405);
                      const float add_177 = hlo_add(mul_408, mul_410);
                      add_177_w_0.v[lane] = store_as<float>(add_177);
                      const float flat_16__1 = load_as<float>(flat_16__1_v_0.v[lane]);
                      const float div_179 = hlo_divide_shared(add_176, sub_60__13);
                      const float mul_411 = hlo_multiply(div_179, 0.001f);
                      const float div_181 = hlo_divide_shared(add_177, sub_61__13);
                      const float sqrt_38 = hlo_sqrt(div_181);
                      const float add_178 = hlo_add(sqrt_38, 1e-08f);
                      const float div_182 = hlo_divide(mul_411, add_178);
                      const float sub_110 = hlo_subtract(flat_16__1, div_182);
                      sub_110_w_0.v[lane] = store_as<float>(sub_110);
                    }
                    *reinterpret_cast<Vec<float, 4>*>(p_add_176 + (col)) = add_176_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_add_177 + (col)) = add_177_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_sub_110 + (col)) = sub_110_w_0;
                  }
                }
              }
            }
          }
        }
      } else {
        {  // loop 31: outer 1 / 1 threads, row 1 / 1 threads x 1, col 128 / 512 threads x 1 x 4; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 15;
          if (first >= 0 && first < 1) {
            const float flat_20__1__14 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__14 = hlo_multiply(flat_20__1__14, flat_20__1__14);
            const float reduce_sum_133_reshape_2__14 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__14 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__14 = hlo_multiply(flat_21__1__14, flat_21__1__14);
            const float reduce_sum_133_add_0__14 = hlo_add(reduce_sum_133_reshape_2__14, mul_258__14);
            const float add_107__14 = hlo_add(mul_257__14, reduce_sum_133_add_0__14);
            const float reduce_sum_134__15 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__14 = hlo_add(add_107__14, reduce_sum_134__15);
            const float reduce_sum_135__15 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__14 = hlo_add(add_108__14, reduce_sum_135__15);
            const float reduce_sum_136__15 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__14 = hlo_add(add_109__14, reduce_sum_136__15);
            const float reduce_sum_137__15 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__14 = hlo_add(add_110__14, reduce_sum_137__15);
            const float reduce_sum_138__15 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__14 = hlo_add(add_111__14, reduce_sum_138__15);
            const float reduce_sum_139__15 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__14 = hlo_add(add_112__14, reduce_sum_139__15);
            const float reduce_sum_140__15 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__14 = hlo_add(add_113__14, reduce_sum_140__15);
            const float reduce_sum_141_reshape_2__14 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__14 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__14 = hlo_multiply(flat_29__1__14, flat_29__1__14);
            const float reduce_sum_141_add_0__14 = hlo_add(reduce_sum_141_reshape_2__14, mul_266__14);
            const float add_115__14 = hlo_add(add_114__14, reduce_sum_141_add_0__14);
            const float reduce_sum_142__15 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__14 = hlo_add(add_115__14, reduce_sum_142__15);
            const float reduce_sum_143__15 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__14 = hlo_add(add_116__14, reduce_sum_143__15);
            const float reduce_sum_144__15 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__14 = hlo_add(add_117__14, reduce_sum_144__15);
            const float reduce_sum_145__15 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__14 = hlo_add(add_118__14, reduce_sum_145__15);
            const float reduce_sum_146__15 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__14 = hlo_add(add_119__14, reduce_sum_146__15);
            const float reduce_sum_147__15 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__14 = hlo_add(add_120__14, reduce_sum_147__15);
            const float reduce_sum_148__15 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__14 = hlo_add(add_121__14, reduce_sum_148__15);
            const float reduce_sum_149__15 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__14 = hlo_add(add_122__14, reduce_sum_149__15);
            const float reduce_sum_150__15 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__14 = hlo_add(add_123__14, reduce_sum_150__15);
            const float reduce_sum_151__15 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__14 = hlo_add(add_124__14, reduce_sum_151__15);
            const float sqrt_21__14 = hlo_sqrt(add_125__14);
            const float add_126__14 = hlo_add(sqrt_21__14, 1e-06f);
            const float div_99__14 = hlo_divide(1.0f, add_126__14);
            const float min_1__14 = hlo_minimum(div_99__14, 1.0f);
            const int step_1__14 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__14 = hlo_convert<float, int>(step_1__14);
            const float add_127__14 = hlo_add(convert_element_type_1__14, 1.0f);
            const float pow_40__14 = hlo_power(0.9f, add_127__14);
            const float sub_60__14 = hlo_subtract(1.0f, pow_40__14);
            const float pow_41__14 = hlo_power(0.999f, add_127__14);
            const float sub_61__14 = hlo_subtract(1.0f, pow_41__14);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 2048 + tx * 4;
                  if (col < 128) {
                    const Vec<float, 4> flat_57__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_57__1 + (col));
                    const Vec<float, 4> flat_37__1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_37__1 + (col));
                    Vec<float, 4> add_179_w_0;
                    const Vec<float, 4> flat_77__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_77__1 + (col));
                    Vec<float, 4> add_180_w_0;
                    const Vec<float, 4> flat_17__1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_flat_17__1 + (col));
                    Vec<float, 4> sub_113_w_0;
                    #pragma unroll
                    for (int lane = 0; lane < 4; ++lane) {
                      const float flat_57__1 = load_as<float>(flat_57__1_v_0.v[lane]);
                      const float mul_414 = hlo_multiply(flat_57__1, 0.9f);
                      const float flat_37__1__1 = load_as<float>(flat_37__1_v_0__1.v[lane]);
                      const float mul_413 = hlo_multiply(flat_37__1__1, min_1__14);
                      const float mul_415 = hlo_multiply(mul_413, 0.1f);
                      const float add_179 = hlo_add(mul_414, mul_415);
                      add_179_w_0.v[lane] = store_as<float>(add_179);
                      const float flat_77__1 = load_as<float>(flat_77__1_v_0.v[lane]);
                      const float mul_416 = hlo_multiply(flat_77__1, 0.999f);
                      const float mul_417 = hlo_multiply(mul_413, 0.001f);
                      const float mul_418 = hlo_multiply(mul_417, mul_413);
                      const float add_180 = hlo_add(mul_416, mul_418);
                      add_180_w_0.v[lane] = store_as<float>(add_180);
                      const float flat_17__1 = load_as<float>(flat_17__1_v_0.v[lane]);
                      const float div_184 = hlo_divide_shared(add_179, sub_60__14);
                      const float mul_419 = hlo_multiply(div_184, 0.001f);
                      const float div_186 = hlo_divide_shared(add_180, sub_61__14);
                      const float sqrt_39 = hlo_sqrt(div_186);
                      const float add_181 = hlo_add(sqrt_39, 1e-08f);
                      const float div_187 = hlo_divide(mul_419, add_181);
                      const float sub_113 = hlo_subtract(flat_17__1, div_187);
                      sub_113_w_0.v[lane] = store_as<float>(sub_113);
                    }
                    *reinterpret_cast<Vec<float, 4>*>(p_add_179 + (col)) = add_179_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_add_180 + (col)) = add_180_w_0;
                    *reinterpret_cast<Vec<float, 4>*>(p_sub_113 + (col)) = sub_113_w_0;
                  }
                }
              }
            }
          }
        }
        {  // loop 32: outer 1 / 1 threads, row 1 / 1 threads x 1, col 31x31 / 512 threads x 1 x 1; 2 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 16;
          if (first >= 0 && first < 2) {
            const float flat_20__1__15 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__15 = hlo_multiply(flat_20__1__15, flat_20__1__15);
            const float reduce_sum_133_reshape_2__15 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__15 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__15 = hlo_multiply(flat_21__1__15, flat_21__1__15);
            const float reduce_sum_133_add_0__15 = hlo_add(reduce_sum_133_reshape_2__15, mul_258__15);
            const float add_107__15 = hlo_add(mul_257__15, reduce_sum_133_add_0__15);
            const float reduce_sum_134__16 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__15 = hlo_add(add_107__15, reduce_sum_134__16);
            const float reduce_sum_135__16 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__15 = hlo_add(add_108__15, reduce_sum_135__16);
            const float reduce_sum_136__16 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__15 = hlo_add(add_109__15, reduce_sum_136__16);
            const float reduce_sum_137__16 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__15 = hlo_add(add_110__15, reduce_sum_137__16);
            const float reduce_sum_138__16 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__15 = hlo_add(add_111__15, reduce_sum_138__16);
            const float reduce_sum_139__16 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__15 = hlo_add(add_112__15, reduce_sum_139__16);
            const float reduce_sum_140__16 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__15 = hlo_add(add_113__15, reduce_sum_140__16);
            const float reduce_sum_141_reshape_2__15 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__15 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__15 = hlo_multiply(flat_29__1__15, flat_29__1__15);
            const float reduce_sum_141_add_0__15 = hlo_add(reduce_sum_141_reshape_2__15, mul_266__15);
            const float add_115__15 = hlo_add(add_114__15, reduce_sum_141_add_0__15);
            const float reduce_sum_142__16 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__15 = hlo_add(add_115__15, reduce_sum_142__16);
            const float reduce_sum_143__16 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__15 = hlo_add(add_116__15, reduce_sum_143__16);
            const float reduce_sum_144__16 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__15 = hlo_add(add_117__15, reduce_sum_144__16);
            const float reduce_sum_145__16 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__15 = hlo_add(add_118__15, reduce_sum_145__16);
            const float reduce_sum_146__16 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__15 = hlo_add(add_119__15, reduce_sum_146__16);
            const float reduce_sum_147__16 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__15 = hlo_add(add_120__15, reduce_sum_147__16);
            const float reduce_sum_148__16 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__15 = hlo_add(add_121__15, reduce_sum_148__16);
            const float reduce_sum_149__16 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__15 = hlo_add(add_122__15, reduce_sum_149__16);
            const float reduce_sum_150__16 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__15 = hlo_add(add_123__15, reduce_sum_150__16);
            const float reduce_sum_151__16 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__15 = hlo_add(add_124__15, reduce_sum_151__16);
            const float sqrt_21__15 = hlo_sqrt(add_125__15);
            const float add_126__15 = hlo_add(sqrt_21__15, 1e-06f);
            const float div_99__15 = hlo_divide(1.0f, add_126__15);
            const float min_1__15 = hlo_minimum(div_99__15, 1.0f);
            const int step_1__15 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__15 = hlo_convert<float, int>(step_1__15);
            const float add_127__15 = hlo_add(convert_element_type_1__15, 1.0f);
            const float pow_40__15 = hlo_power(0.9f, add_127__15);
            const float sub_60__15 = hlo_subtract(1.0f, pow_40__15);
            const float pow_41__15 = hlo_power(0.999f, add_127__15);
            const float sub_61__15 = hlo_subtract(1.0f, pow_41__15);
            {
              const int task = first;
              const int col_tile = task;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 512 + tx + col_tile * 512;
                  if (col < 961) {
                    const float flat_58__1 = load_as<float>(p_flat_58__1[col]);
                    const float mul_422 = hlo_multiply(flat_58__1, 0.9f);
                    const float flat_38__1__1 = load_as<float>(p_flat_38__1[col]);
                    const float mul_421 = hlo_multiply(flat_38__1__1, min_1__15);
                    const float mul_423 = hlo_multiply(mul_421, 0.1f);
                    const float add_182 = hlo_add(mul_422, mul_423);
                    p_add_182[col] = store_as<float>(add_182);
                    const float flat_78__1 = load_as<float>(p_flat_78__1[col]);
                    const float mul_424 = hlo_multiply(flat_78__1, 0.999f);
                    const float mul_425 = hlo_multiply(mul_421, 0.001f);
                    const float mul_426 = hlo_multiply(mul_425, mul_421);
                    const float add_183 = hlo_add(mul_424, mul_426);
                    p_add_183[col] = store_as<float>(add_183);
                    const float flat_18__1 = load_as<float>(p_flat_18__1[col]);
                    const float div_189 = hlo_divide_shared(add_182, sub_60__15);
                    const float mul_427 = hlo_multiply(div_189, 0.001f);
                    const float div_191 = hlo_divide_shared(add_183, sub_61__15);
                    const float sqrt_40 = hlo_sqrt(div_191);
                    const float add_184 = hlo_add(sqrt_40, 1e-08f);
                    const float div_192 = hlo_divide(mul_427, add_184);
                    const float sub_116 = hlo_subtract(flat_18__1, div_192);
                    p_sub_116[col] = store_as<float>(sub_116);
                  }
                }
              }
            }
          }
        }
        {  // loop 33: outer 1 / 1 threads, row 1 / 1 threads x 1, col 257 / 512 threads x 1 x 1; 1 tasks; element-wise: flat tiles
          const int thread = threadIdx.x;
          const int tx = threadIdx.x;
          const int ty = 0;
          const int to = 0;
          const int first = int(blockIdx.x) - 18;
          if (first >= 0) {
            const float flat_20__1__16 = load_as<float>(p_flat_20__1[0]);
            const float mul_257__16 = hlo_multiply(flat_20__1__16, flat_20__1__16);
            const float reduce_sum_133_reshape_2__16 = load_as<float>(p_reduce_sum_133_reshape_2[0]);
            const float flat_21__1__16 = load_as<float>(p_flat_21__1[0]);
            const float mul_258__16 = hlo_multiply(flat_21__1__16, flat_21__1__16);
            const float reduce_sum_133_add_0__16 = hlo_add(reduce_sum_133_reshape_2__16, mul_258__16);
            const float add_107__16 = hlo_add(mul_257__16, reduce_sum_133_add_0__16);
            const float reduce_sum_134__17 = load_as<float>(p_reduce_sum_134[0]);
            const float add_108__16 = hlo_add(add_107__16, reduce_sum_134__17);
            const float reduce_sum_135__17 = load_as<float>(p_reduce_sum_135[0]);
            const float add_109__16 = hlo_add(add_108__16, reduce_sum_135__17);
            const float reduce_sum_136__17 = load_as<float>(p_reduce_sum_136[0]);
            const float add_110__16 = hlo_add(add_109__16, reduce_sum_136__17);
            const float reduce_sum_137__17 = load_as<float>(p_reduce_sum_137[0]);
            const float add_111__16 = hlo_add(add_110__16, reduce_sum_137__17);
            const float reduce_sum_138__17 = load_as<float>(p_reduce_sum_138[0]);
            const float add_112__16 = hlo_add(add_111__16, reduce_sum_138__17);
            const float reduce_sum_139__17 = load_as<float>(p_reduce_sum_139[0]);
            const float add_113__16 = hlo_add(add_112__16, reduce_sum_139__17);
            const float reduce_sum_140__17 = load_as<float>(p_reduce_sum_140[0]);
            const float add_114__16 = hlo_add(add_113__16, reduce_sum_140__17);
            const float reduce_sum_141_reshape_2__16 = load_as<float>(p_reduce_sum_141_reshape_2[0]);
            const float flat_29__1__16 = load_as<float>(p_flat_29__1[0]);
            const float mul_266__16 = hlo_multiply(flat_29__1__16, flat_29__1__16);
            const float reduce_sum_141_add_0__16 = hlo_add(reduce_sum_141_reshape_2__16, mul_266__16);
            const float add_115__16 = hlo_add(add_114__16, reduce_sum_141_add_0__16);
            const float reduce_sum_142__17 = load_as<float>(p_reduce_sum_142[0]);
            const float add_116__16 = hlo_add(add_115__16, reduce_sum_142__17);
            const float reduce_sum_143__17 = load_as<float>(p_reduce_sum_143[0]);
            const float add_117__16 = hlo_add(add_116__16, reduce_sum_143__17);
            const float reduce_sum_144__17 = load_as<float>(p_reduce_sum_144[0]);
            const float add_118__16 = hlo_add(add_117__16, reduce_sum_144__17);
            const float reduce_sum_145__17 = load_as<float>(p_reduce_sum_145[0]);
            const float add_119__16 = hlo_add(add_118__16, reduce_sum_145__17);
            const float reduce_sum_146__17 = load_as<float>(p_reduce_sum_146[0]);
            const float add_120__16 = hlo_add(add_119__16, reduce_sum_146__17);
            const float reduce_sum_147__17 = load_as<float>(p_reduce_sum_147[0]);
            const float add_121__16 = hlo_add(add_120__16, reduce_sum_147__17);
            const float reduce_sum_148__17 = load_as<float>(p_reduce_sum_148[0]);
            const float add_122__16 = hlo_add(add_121__16, reduce_sum_148__17);
            const float reduce_sum_149__17 = load_as<float>(p_reduce_sum_149[0]);
            const float add_123__16 = hlo_add(add_122__16, reduce_sum_149__17);
            const float reduce_sum_150__17 = load_as<float>(p_reduce_sum_150[0]);
            const float add_124__16 = hlo_add(add_123__16, reduce_sum_150__17);
            const float reduce_sum_151__17 = load_as<float>(p_reduce_sum_151[0]);
            const float add_125__16 = hlo_add(add_124__16, reduce_sum_151__17);
            const float sqrt_21__16 = hlo_sqrt(add_125__16);
            const float add_126__16 = hlo_add(sqrt_21__16, 1e-06f);
            const float div_99__16 = hlo_divide(1.0f, add_126__16);
            const float min_1__16 = hlo_minimum(div_99__16, 1.0f);
            const int step_1__16 = load_as<int>(p_step_1[0]);
            const float convert_element_type_1__16 = hlo_convert<float, int>(step_1__16);
            const float add_127__16 = hlo_add(convert_element_type_1__16, 1.0f);
            const float pow_40__16 = hlo_power(0.9f, add_127__16);
            const float sub_60__16 = hlo_subtract(1.0f, pow_40__16);
            const float pow_41__16 = hlo_power(0.999f, add_127__16);
            const float sub_61__16 = hlo_subtract(1.0f, pow_41__16);
            {
              const int task = first;
              {
                const int k = 0;
                {
                  const int l = 0;
                  const int col = l * 512 + tx;
                  if (col < 257) {
                    const float flat_59__1 = load_as<float>(p_flat_59__1[col]);
                    const float mul_430 = hlo_multiply(flat_59__1, 0.9f);
                    const float flat_39__1__1 = load_as<float>(p_flat_39__1[col]);
                    const float mul_429 = hlo_multiply(flat_39__1__1, min_1__16);
                    const float mul_431 = hlo_multiply(mul_429, 0.1f);
                    const float add_185 = hlo_add(mul_430, mul_431);
                    p_add_185[col] = store_as<float>(add_185);
                    const float flat_79__1 = load_as<float>(p_flat_79__1[col]);
                    const float mul_432 = hlo_multiply(flat_79__1, 0.999f);
                    const float mul_433 = hlo_multiply(mul_429, 0.001f);
                    const float mul_434 = hlo_multiply(mul_433, mul_429);
                    const float add_186 = hlo_add(mul_432, mul_434);
                    p_add_186[col] = store_as<float>(add_186);
                    const float flat_19__1 = load_as<float>(p_flat_19__1[col]);
                    const float div_194 = hlo_divide_shared(add_185, sub_60__16);
                    const float mul_435 = hlo_multiply(div_194, 0.001f);
                    const float div_196 = hlo_divide_shared(add_186, sub_61__16);
                    const float sqrt_41 = hlo_sqrt(div_196);
                    const float add_187 = hlo_add(sqrt_41, 1e-08f);
                    const float div_197 = hlo_divide(mul_435, add_187);
                    const float sub_119 = hlo_subtract(flat_19__1, div_197);
                    p_sub_119[col] = store_as<float>(sub_119);
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}
