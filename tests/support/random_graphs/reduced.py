"""Small programs that random ones were reduced to when they failed, as the graph's text form."""

from __future__ import annotations

REDUCED = {
    "sort of the first of what is sorted": """
graph "main" (%0 : u32[5] "x", %1 : bf16[5] "y") {
  %2 = sort xs=[%0, %1] dimension=0 is_stable=true
    comparator=graph "order" (%0 : u32[] "", %1 : u32[] "", %2 : bf16[] "", %3 : bf16[] "") {
      %4 = map function="greater" args=[%0, %1] : pred[]
      return %4
    } : (u32[5], bf16[5])
  %3 = get x=%2 index=0 : u32[5]
  %4 = sort xs=[%3] dimension=0 is_stable=true
    comparator=graph "order" (%0 : u32[] "", %1 : u32[] "") {
      %2 = map function="less" args=[%0, %1] : pred[]
      return %2
    } : u32[5]
  return %4
}
""",
    "magnitude of a negated number without sign": """
graph "main" (%0 : u16[32,128] "x") {
  %1 = map function="negate" args=[%0] : u16[32,128]
  %2 = map function="abs" args=[%1] : u16[32,128]
  return %2
}
""",
    "function of one integer of four bits": """
graph "main" (%0 : s4[] "x", %1 : s4[] "y") {
  %2 = map function="minimum" args=[%0, %1] : s4[]
  return %2
}
""",
    "conversion of one number to an integer of four bits": """
graph "main" (%0 : s32[] "x") {
  %1 = convert x=%0 to=u4 : u4[]
  return %1
}
""",
    "scatter that adds integers which wrap at 16 bits": """
graph "main" (%0 : s16[4,3] "x", %1 : s32[32,1] "at", %2 : s16[32,3] "updates") {
  %3 = scatter xs=[%0] indices=%1 updates=[%2] update_window_dims=[1] inserted_window_dims=[0]
    x_batch_dims=[] indices_batch_dims=[] scatter_dims=[0] index_vector_dim=1 unique_indices=false
    body=graph "add" (%0 : s16[] "", %1 : s16[] "") {
      %2 = map function="add" args=[%0, %1] : s16[]
      return %2
    } : s16[4,3]
  return %3
}
""",
    "sort whose second tensor is a broadcast": """
graph "main" (%0 : u32[7,1] "x", %1 : f32[] "y") {
  %2 = broadcast x=%1 result_shape=[7, 1] dimensions=[] : f32[7,1]
  %3 = sort xs=[%0, %2] dimension=0 is_stable=true
    comparator=graph "order" (%0 : u32[] "", %1 : u32[] "", %2 : f32[] "", %3 : f32[] "") {
      %4 = map function="greater" args=[%0, %1] : pred[]
      return %4
    } : (u32[7,1], f32[7,1])
  %4 = get x=%3 index=1 : f32[7,1]
  return %4
}
""",
    "positions that wrap at 8 bits": """
graph "main" (%0 : u8[511,2] "x") {
  %1 = iota result=u8[511,2] dimension=0 : u8[511,2]
  %2 = map function="add" args=[%0, %1] : u8[511,2]
  return %2, %1
}
""",
    "function of many values at once in a block of rows": """
graph "main" (%0 : c64[1,5,64,65] "x") {
  %1 = map function="tan" args=[%0] : c64[1,5,64,65]
  return %1
}
""",
    "gather of one element": """
graph "main" (%0 : f32[5] "x", %1 : s32[1] "at") {
  %2 = gather x=%0 indices=%1 offset_dims=[] collapsed_dims=[0] x_batch_dims=[]
    indices_batch_dims=[] start_index_map=[0] index_vector_dim=0 slice_sizes=[1] : f32[]
  return %2
}
""",
    "integer sum over windows of three of six dimensions": """
graph "main" (%0 : s32[4,2,40,1,5] "x", %1 : s32[] "start") {
  %2 = reduce_window xs=[%0] inits=[%1] window=[5, 2, 2, 1, 1] stride=[2, 1, 1, 1, 1]
    low=[0, 1, 0, 0, 0] high=[0, 1, 0, 0, 0] x_dilation=[2, 1, 1, 1, 1]
    window_dilation=[1, 1, 1, 1, 1] body=graph "add" (%0 : s32[] "", %1 : s32[] "") {
      %2 = map function="add" args=[%0, %1] : s32[]
      return %2
    } : s32[2,3,39,1,5]
  return %2
}
""",
    "padded window over a strided slice": """
graph "main" (%0 : f32[40,5] "x", %1 : f32[] "start") {
  %2 = slice x=%0 start=[6, 3] limit=[40, 5] stride=[1, 2] : f32[34,1]
  %3 = reduce_window xs=[%2] inits=[%1] window=[1, 5] stride=[1, 3] low=[0, 0] high=[1, 4]
    x_dilation=[1, 1] window_dilation=[1, 1] body=graph "add" (%0 : f32[] "", %1 : f32[] "") {
      %2 = map function="add" args=[%0, %1] : f32[]
      return %2
    } : f32[35,1]
  return %3
}
""",
    "gather at unsigned positions": """
graph "main" (%0 : f32[5] "x", %1 : u32[33,1] "at") {
  %2 = gather x=%0 indices=%1 offset_dims=[] collapsed_dims=[0] x_batch_dims=[]
    indices_batch_dims=[] start_index_map=[0] index_vector_dim=1 slice_sizes=[1] : f32[33]
  return %2
}
""",
    "slice at a 64-bit position": """
graph "main" (%0 : s64[5,3] "x", %1 : u64[] "at", %2 : s64[] "column") {
  %3 = dynamic_slice x=%0 starts=[%1, %2] slice_sizes=[2, 2] : s64[2,2]
  return %3
}
""",
    "constant of negative 64-bit integers": """
graph "main" () {
  %0 = constant value=-61 : s64[]
  %1 = broadcast x=%0 result_shape=[3, 5] dimensions=[] : s64[3,5]
  return %1
}
""",
    "triangular solve with infinities on its diagonal": """
graph "main" (%0 : f32[8,5,2] "b", %1 : f32[8,5,5] "a") {
  %2 = triangular_solve a=%1 b=%0 left_side=true lower=true unit_diagonal=true transpose="no"
    : f32[8,5,2]
  %3 = triangular_solve a=%1 b=%0 left_side=true lower=false unit_diagonal=false transpose="no"
    : f32[8,5,2]
  return %2, %3
}
""",
    "scatter that rounds at each of many terms": """
graph "main" (%0 : bf16[1] "x", %1 : s32[129,1] "at", %2 : bf16[] "update") {
  %3 = broadcast x=%2 result_shape=[129] dimensions=[] : bf16[129]
  %4 = scatter xs=[%0] indices=%1 updates=[%3] update_window_dims=[] inserted_window_dims=[0]
    x_batch_dims=[] indices_batch_dims=[] scatter_dims=[0] index_vector_dim=1 unique_indices=false
    body=graph "add" (%0 : bf16[] "", %1 : bf16[] "") {
      %2 = map function="add" args=[%0, %1] : bf16[]
      return %2
    } : bf16[1]
  return %4
}
""",
    "transform of single infinities": """
graph "main" (%0 : c64[9,4,1] "x", %1 : f32[9,4,1] "y") {
  %2 = fft x=%1 kind="rfft" lengths=[1] : c64[9,4,1]
  %3 = map function="minimum" args=[%0, %2] : c64[9,4,1]
  return %3
}
""",
    "transforms of infinities": """
graph "main" (%0 : c64[9,5] "x", %1 : f32[9,2,3] "y") {
  %2 = fft x=%0 kind="fft" lengths=[5] : c64[9,5]
  %3 = fft x=%1 kind="rfft" lengths=[2, 3] : c64[9,2,2]
  %4 = fft x=%0 kind="irfft" lengths=[8] : f32[9,8]
  return %2, %3, %4
}
""",
    "and of integers with a sign in a window that is clipped": """
graph "main" (%0 : s32[96] "x") {
  %1 = constant value=-1 : s32[]
  %2 = reduce_window xs=[%0] inits=[%1] window=[2] stride=[2] low=[0] high=[1] x_dilation=[1]
    window_dilation=[2] body=graph "and" (%0 : s32[] "", %1 : s32[] "") {
    %2 = map function="and" args=[%0, %1] : s32[]
    return %2
  } : s32[48]
  return %2
}
""",
    "conversion to nibbles from a float that lacks their limits": """
graph "main" (%0 : f8e5m2[5,16] "x") {
  %1 = convert x=%0 to=u4 : u4[5,16]
  %2 = convert x=%0 to=s2 : s2[5,16]
  return %1, %2
}
""",
}
