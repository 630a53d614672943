/* A model of the results of atomic operations at their targets (fi_atomic(3)), in plain C. */
#include "every.h"

size_t datatype_size(enum fi_datatype type)
{
	switch (type) {
	case FI_INT8:
	case FI_UINT8:
		return 1;
	case FI_INT16:
	case FI_UINT16:
		return 2;
	case FI_INT32:
	case FI_UINT32:
	case FI_FLOAT:
		return 4;
	case FI_INT64:
	case FI_UINT64:
	case FI_DOUBLE:
		return 8;
	default:
		return 0;
	}
}

/* The common part of integers and floats. Sums and products use W, which is unsigned for integers, so that they wrap around. */
#define COMMON(T, W)                                                                                                   \
	case FI_MIN:                                                                                                       \
		t = o < t ? o : t;                                                                                             \
		break;                                                                                                         \
	case FI_MAX:                                                                                                       \
		t = o > t ? o : t;                                                                                             \
		break;                                                                                                         \
	case FI_SUM:                                                                                                       \
		t = (T)((W)t + (W)o);                                                                                          \
		break;                                                                                                         \
	case FI_PROD:                                                                                                      \
		t = (T)((W)t * (W)o);                                                                                          \
		break;                                                                                                         \
	case FI_LOR:                                                                                                       \
		t = (T)(t || o);                                                                                               \
		break;                                                                                                         \
	case FI_LAND:                                                                                                      \
		t = (T)(t && o);                                                                                               \
		break;                                                                                                         \
	case FI_LXOR:                                                                                                      \
		t = (T)(!t != !o);                                                                                             \
		break;                                                                                                         \
	case FI_ATOMIC_READ:                                                                                               \
		break;                                                                                                         \
	case FI_ATOMIC_WRITE:                                                                                              \
		t = o;                                                                                                         \
		break;                                                                                                         \
	case FI_CSWAP:                                                                                                     \
		t = c == t ? o : t;                                                                                            \
		break;                                                                                                         \
	case FI_CSWAP_NE:                                                                                                  \
		t = c != t ? o : t;                                                                                            \
		break;                                                                                                         \
	case FI_CSWAP_LE:                                                                                                  \
		t = c <= t ? o : t;                                                                                            \
		break;                                                                                                         \
	case FI_CSWAP_LT:                                                                                                  \
		t = c < t ? o : t;                                                                                             \
		break;                                                                                                         \
	case FI_CSWAP_GE:                                                                                                  \
		t = c >= t ? o : t;                                                                                            \
		break;                                                                                                         \
	case FI_CSWAP_GT:                                                                                                  \
		t = c > t ? o : t;                                                                                             \
		break;

#define BITS(T)                                                                                                        \
	case FI_BOR:                                                                                                       \
		t = (T)(t | o);                                                                                                \
		break;                                                                                                         \
	case FI_BAND:                                                                                                      \
		t = (T)(t & o);                                                                                                \
		break;                                                                                                         \
	case FI_BXOR:                                                                                                      \
		t = (T)(t ^ o);                                                                                                \
		break;                                                                                                         \
	case FI_MSWAP:                                                                                                     \
		t = (T)((o & c) | (t & ~c));                                                                                   \
		break;

#define FUNCTION(name, T, W, MORE)                                                                                     \
	static bool name(enum fi_op op, void *target, const void *operand, const void *compare)                           \
	{                                                                                                                  \
		T t, o, c;                                                                                                     \
		memcpy(&t, target, sizeof(t));                                                                                 \
		memcpy(&o, operand, sizeof(o));                                                                                \
		memcpy(&c, compare, sizeof(c));                                                                                \
		switch (op) {                                                                                                  \
			COMMON(T, W)                                                                                               \
			MORE                                                                                                       \
		default:                                                                                                       \
			return false;                                                                                              \
		}                                                                                                              \
		memcpy(target, &t, sizeof(t));                                                                                 \
		return true;                                                                                                   \
	}

#define INTEGER(name, T) FUNCTION(name, T, uint64_t, BITS(T))

INTEGER(on_int8, int8_t)
INTEGER(on_uint8, uint8_t)
INTEGER(on_int16, int16_t)
INTEGER(on_uint16, uint16_t)
INTEGER(on_int32, int32_t)
INTEGER(on_uint32, uint32_t)
INTEGER(on_int64, int64_t)
INTEGER(on_uint64, uint64_t)
FUNCTION(on_float, float, float, )
FUNCTION(on_double, double, double, )

bool model(enum fi_datatype type, enum fi_op op, void *target, const void *operand, const void *compare)
{
	static bool (*const all[])(enum fi_op, void *, const void *, const void *) = {
		[FI_INT8] = on_int8, [FI_UINT8] = on_uint8, [FI_INT16] = on_int16, [FI_UINT16] = on_uint16,
		[FI_INT32] = on_int32, [FI_UINT32] = on_uint32, [FI_INT64] = on_int64, [FI_UINT64] = on_uint64,
		[FI_FLOAT] = on_float, [FI_DOUBLE] = on_double,
	};

	return (size_t)type < COUNT(all) && all[type](op, target, operand, compare);
}
