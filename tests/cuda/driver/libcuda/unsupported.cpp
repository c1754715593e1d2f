// What PyCUDA names and the emulation has not: each says CUDA_ERROR_NOT_SUPPORTED.
//
// PyCUDA's extension wants every name of the driver to be there when it is loaded. NVRTC, in a process
// that has a driver, asks it for a table, and calls what it finds by that name without a look.
#define NOT_SUPPORTED(name) \
  extern "C" __attribute__((visibility("default"))) int name() { return 801; }

NOT_SUPPORTED(cuArray3DCreate_v2) NOT_SUPPORTED(cuArray3DGetDescriptor_v2)
NOT_SUPPORTED(cuArrayCreate_v2) NOT_SUPPORTED(cuArrayDestroy)
NOT_SUPPORTED(cuArrayGetDescriptor_v2) NOT_SUPPORTED(cuCtxDisablePeerAccess)
NOT_SUPPORTED(cuCtxEnablePeerAccess) NOT_SUPPORTED(cuCtxGetCacheConfig)
NOT_SUPPORTED(cuCtxGetLimit) NOT_SUPPORTED(cuCtxGetSharedMemConfig)
NOT_SUPPORTED(cuCtxSetCacheConfig) NOT_SUPPORTED(cuCtxSetLimit)
NOT_SUPPORTED(cuCtxSetSharedMemConfig) NOT_SUPPORTED(cuDeviceGetByPCIBusId)
NOT_SUPPORTED(cuFuncSetSharedMemConfig) NOT_SUPPORTED(cuFuncSetSharedSize)
NOT_SUPPORTED(cuGetExportTable)
NOT_SUPPORTED(cuIpcCloseMemHandle)
NOT_SUPPORTED(cuIpcGetEventHandle) NOT_SUPPORTED(cuIpcGetMemHandle)
NOT_SUPPORTED(cuIpcOpenEventHandle) NOT_SUPPORTED(cuIpcOpenMemHandle_v2) NOT_SUPPORTED(cuLaunch)
NOT_SUPPORTED(cuLaunchGrid) NOT_SUPPORTED(cuLaunchGridAsync) NOT_SUPPORTED(cuLinkAddData_v2)
NOT_SUPPORTED(cuLinkAddFile_v2) NOT_SUPPORTED(cuLinkComplete) NOT_SUPPORTED(cuLinkCreate_v2)
NOT_SUPPORTED(cuLinkDestroy) NOT_SUPPORTED(cuMemAllocManaged) NOT_SUPPORTED(cuMemcpy3D_v2)
NOT_SUPPORTED(cuMemcpy3DAsync_v2) NOT_SUPPORTED(cuMemcpy3DPeer)
NOT_SUPPORTED(cuMemcpy3DPeerAsync) NOT_SUPPORTED(cuMemcpyAtoA_v2) NOT_SUPPORTED(cuMemcpyAtoD_v2)
NOT_SUPPORTED(cuMemcpyAtoH_v2) NOT_SUPPORTED(cuMemcpyDtoA_v2) NOT_SUPPORTED(cuMemcpyHtoA_v2)
NOT_SUPPORTED(cuMemcpyPeer) NOT_SUPPORTED(cuMemcpyPeerAsync) NOT_SUPPORTED(cuModuleGetGlobal_v2)
NOT_SUPPORTED(cuModuleGetSurfRef) NOT_SUPPORTED(cuModuleGetTexRef) NOT_SUPPORTED(cuModuleLoad)
NOT_SUPPORTED(cuParamSetSize) NOT_SUPPORTED(cuParamSetTexRef) NOT_SUPPORTED(cuParamSetf)
NOT_SUPPORTED(cuParamSeti) NOT_SUPPORTED(cuParamSetv) NOT_SUPPORTED(cuProfilerInitialize)
NOT_SUPPORTED(cuProfilerStart) NOT_SUPPORTED(cuProfilerStop) NOT_SUPPORTED(cuStreamAttachMemAsync)
NOT_SUPPORTED(cuSurfRefGetArray) NOT_SUPPORTED(cuSurfRefSetArray) NOT_SUPPORTED(cuTexRefCreate)
NOT_SUPPORTED(cuTexRefDestroy) NOT_SUPPORTED(cuTexRefGetAddress_v2)
NOT_SUPPORTED(cuTexRefGetAddressMode) NOT_SUPPORTED(cuTexRefGetArray)
NOT_SUPPORTED(cuTexRefGetFilterMode) NOT_SUPPORTED(cuTexRefGetFlags)
NOT_SUPPORTED(cuTexRefGetFormat) NOT_SUPPORTED(cuTexRefSetAddress2D_v3)
NOT_SUPPORTED(cuTexRefSetAddress_v2) NOT_SUPPORTED(cuTexRefSetAddressMode)
NOT_SUPPORTED(cuTexRefSetArray) NOT_SUPPORTED(cuTexRefSetFilterMode)
NOT_SUPPORTED(cuTexRefSetFlags) NOT_SUPPORTED(cuTexRefSetFormat)
