# SPDX-License-Identifier: Apache-2.0
#
# One imported target over an installed torch, for the build of torchvox and for its C++ consumers.
# torch's own package config is not used: it rewrites CMAKE_CUDA_FLAGS and the architecture list of
# whoever calls it, and it refuses a CUDA torch on a machine without a CUDA toolkit.

# torchvox_add_torch(<target> <torch folder> <cxx11 abi 0|1> <with cuda>)
function(torchvox_add_torch target dir cxx11_abi with_cuda)
  if(TARGET ${target})
    return()
  endif()
  set(names torch torch_cpu c10)
  if(with_cuda)
    list(APPEND names torch_cuda c10_cuda)
  endif()
  set(libraries)
  foreach(name IN LISTS names)
    set(library "${dir}/lib/lib${name}.so")
    if(NOT EXISTS "${library}")
      message(FATAL_ERROR "TorchVox: ${library} is missing; set TORCHVOX_TORCH_DIR to the folder of "
                          "the torch that torchvox was built for (python -c \"import torch; "
                          "print(torch.__path__[0])\")")
    endif()
    list(APPEND libraries "${library}")
  endforeach()
  add_library(${target} INTERFACE IMPORTED)
  set_target_properties(${target} PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${dir}/include;${dir}/include/torch/csrc/api/include"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${dir}/include;${dir}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "${libraries}"
    INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=${cxx11_abi}")
endfunction()
