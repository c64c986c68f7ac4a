# Leaves out of llama.cpp what edgechat doesn't use. CMake reads this file when llama.cpp's project begins:
#   CMAKE_ARGS="-DLLAVA_BUILD=OFF -DCMAKE_PROJECT_llama.cpp_INCLUDE=<this file>" pip install llama-cpp-python
#
# llama-cpp-python forces llama.cpp's `common` library into the cache, for its own multimodal library, which
# LLAVA_BUILD=OFF leaves out. Its C++ symbols can't be called from Python: a third of the compile for nothing.
# A normal variable shadows the cache entry here.
set(LLAMA_BUILD_COMMON OFF)

# Mends the intrinsic by which the matrix unit AMX is set up; compilers that are newer have it right.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  add_compile_options(
    "$<$<COMPILE_LANGUAGE:C,CXX>:-include>" "$<$<COMPILE_LANGUAGE:C,CXX>:${CMAKE_CURRENT_LIST_DIR}/amx-tile-config.h>")
endif()
