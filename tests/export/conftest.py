from tiny import encoder as encoder
from tiny import real_images as real_images
