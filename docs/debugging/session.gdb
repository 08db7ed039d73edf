break missing_second_barrier.cu:15 if threadIdx.x == 5 && blockIdx.x == 0
run
print threadIdx
print tile[0]@8
next
print threadIdx
print tile[0]@8
delete
continue
