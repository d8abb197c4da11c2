// rdma_cm: what librdmacm asks by write(2) on /dev/infiniband/rdma_cm. Both ends of each connection are in this
// process.
#pragma once

#include "hca_fabric.hpp"

namespace mlx5_model {

/// A new descriptor on which librdmacm speaks, or -errno.
int open_rdma_cm();
/// The device is gone: each identifier that is bound to it hears RDMA_CM_EVENT_DEVICE_REMOVAL, and nothing new binds to
/// it.
void remove_from_rdma_cm(const DeviceFacts& device);

}  // namespace mlx5_model
